"""``verify``: whether every file of a run, a study, a sweep or a review is as it was written, and can be read."""

from labelgap.verification.folders import (
    FileCheck,
    Verification,
    accept_changes,
    foreign_names,
    named_by,
    trust_folder,
    verify_run,
)

__all__ = ["FileCheck", "Verification", "accept_changes", "foreign_names", "named_by", "trust_folder", "verify_run"]
