-- Larger files for a day of the lake, in place of one for each host, window and table. Run it once a day is over, and
-- then let the readers use COMPACT in place of LAKE; both may be addresses like s3://bucket/path. LAKE is replaced in
-- the views (../views/duckdb.sql), which come first; COMPACT and DAY (as 2026-11-23) here. Run again, it replaces the
-- day. A directory COMPACT/v1 must be there; an object store needs none.
COPY (SELECT * REPLACE ('all' AS hour) FROM samples WHERE day = DATE 'DAY' ORDER BY vm, process, function)
  TO 'COMPACT/v1/samples' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE);
-- The same stack of several hosts and windows has one row.
COPY (SELECT min(t) AS t, min(host) AS host, stack, min(depth) AS depth, min(frames) AS frames,
      min(doubtful) AS doubtful, min(reason) AS reason, DATE 'DAY' AS day, 'all' AS hour
    FROM stacks WHERE day = DATE 'DAY' GROUP BY stack ORDER BY stack)
  TO 'COMPACT/v1/stacks' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE);
COPY (SELECT * REPLACE ('all' AS hour) FROM vcpus WHERE day = DATE 'DAY' ORDER BY host, vm)
  TO 'COMPACT/v1/vcpus' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE);
COPY (SELECT * REPLACE ('all' AS hour) FROM tasks WHERE day = DATE 'DAY' ORDER BY host, vm, process)
  TO 'COMPACT/v1/tasks' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE);
COPY (SELECT * REPLACE ('all' AS hour) FROM vms WHERE day = DATE 'DAY' ORDER BY host, vm)
  TO 'COMPACT/v1/vms' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE);
