"""The inspector: pages over a live store, read-only unless writes are allowed. An ASGI application.

>>> from holdfast.inspector import inspector
>>> app = inspector("sqlite::memory:", authenticate=lambda request: True)
"""

from holdfast.inspector.app import inspector
from holdfast.inspector.security import Authenticate

__all__ = ["Authenticate", "inspector"]
