"""What looks like a secret: names, scan, redaction."""
