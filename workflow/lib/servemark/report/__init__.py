"""What a reader gets: the tidy table (CSV, Parquet, terminal) and the self-contained HTML page."""
