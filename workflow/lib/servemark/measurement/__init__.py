"""What decides whether a result may be shown: raw results, statistics, verdicts, reasons and the ledger."""
