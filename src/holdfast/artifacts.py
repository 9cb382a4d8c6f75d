"""Values of `store.artifacts`."""

from holdfast.records.artifacts import Artifact, ArtifactCheck, ArtifactSummary

__all__ = ["Artifact", "ArtifactCheck", "ArtifactSummary"]
