"""From tasks to rows: playing teams, scoring turns, building batches."""
