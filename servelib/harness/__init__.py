"""The load generator: traces, drivers, records, metrics, statistics, reports."""
