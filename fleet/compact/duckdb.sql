-- One file for a day of each table, in place of one for each host and window. Run it once a day is over, and then let
-- the readers use COMPACT in place of LAKE. LAKE, COMPACT and DAY (as 2026-11-23) are put in by the caller.
COPY (SELECT * EXCLUDE (day, hour) FROM samples WHERE day = 'DAY' ORDER BY vm, process, function)
  TO 'COMPACT/v1/samples/day=DAY/hour=all/all.parquet' (FORMAT parquet, COMPRESSION zstd);
-- The same stack has one row.
COPY (SELECT min(t) AS t, min(host) AS host, stack, min(depth) AS depth, min(frames) AS frames, min(doubtful) AS doubtful,
        min(reason) AS reason FROM stacks WHERE day = 'DAY' GROUP BY stack ORDER BY stack)
  TO 'COMPACT/v1/stacks/day=DAY/hour=all/all.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * EXCLUDE (day, hour) FROM vcpus WHERE day = 'DAY' ORDER BY host, vm)
  TO 'COMPACT/v1/vcpus/day=DAY/hour=all/all.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * EXCLUDE (day, hour) FROM tasks WHERE day = 'DAY' ORDER BY host, vm)
  TO 'COMPACT/v1/tasks/day=DAY/hour=all/all.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * EXCLUDE (day, hour) FROM vms WHERE day = 'DAY' ORDER BY host, vm)
  TO 'COMPACT/v1/vms/day=DAY/hour=all/all.parquet' (FORMAT parquet, COMPRESSION zstd);
