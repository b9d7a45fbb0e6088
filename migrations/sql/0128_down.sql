drop index ix_runs_waiting_summaries;
