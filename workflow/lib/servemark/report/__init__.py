"""Make the results for readers: the tidy table (CSV, Parquet, terminal) and the HTML report."""
