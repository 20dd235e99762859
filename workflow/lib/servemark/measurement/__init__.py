"""What decides whether a number may be shown: raw results, verdicts, the ledger and the gate."""
