"""Check an archive: its files against its manifest, its results against its per-request results.

The check works offline and needs only the archive. It proves four things:

- No file was lost or changed after sealing.
- The crate lists these files.
- Records, table and report state what the per-request results give.
- No fact stands in two places with two values.

It does not prove who sealed the archive. For that, check its signature (``archive.signature``). Or compare its identity, the sha256 of its
manifest, with the one from the sender.
"""

from servemark.verification.whole_archive import Verification, contradictions, printable, refused, verify

__all__ = ["Verification", "contradictions", "printable", "refused", "verify"]
