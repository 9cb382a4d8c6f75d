"""Holdfast as the store of an agent framework: one package for each, which imports its framework on first use.

An adapter knows the public store, its framework and no other adapter. Nothing here is imported by `import holdfast`.
"""
