-- Larger files for a day of the lake, in place of one for each host, window and table. Run it once a day is over, and
-- then let the readers use COMPACT in place of LAKE; both may be addresses like s3://bucket/path. LAKE is replaced in
-- the views (../views/duckdb.sql), which come first; COMPACT and DAY (as 2026-11-23) here. Run again, it replaces the
-- day. A directory COMPACT/v1 must be there; an object store needs none.
-- Each part is sorted by itself: an eighth of the memory, or of the disk if that is too little.
CREATE OR REPLACE MACRO part_of_day(part) AS TABLE
  SELECT * REPLACE ('all' AS hour) FROM samples WHERE day = DATE 'DAY' AND hash(vm) % 8 = part
  ORDER BY vm, process, function;
COPY (FROM part_of_day(0)) TO 'COMPACT/v1/samples'
  (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE, FILENAME_PATTERN 'part_0_{i}');
COPY (FROM part_of_day(1)) TO 'COMPACT/v1/samples'
  (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE, FILENAME_PATTERN 'part_1_{i}');
COPY (FROM part_of_day(2)) TO 'COMPACT/v1/samples'
  (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE, FILENAME_PATTERN 'part_2_{i}');
COPY (FROM part_of_day(3)) TO 'COMPACT/v1/samples'
  (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE, FILENAME_PATTERN 'part_3_{i}');
COPY (FROM part_of_day(4)) TO 'COMPACT/v1/samples'
  (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE, FILENAME_PATTERN 'part_4_{i}');
COPY (FROM part_of_day(5)) TO 'COMPACT/v1/samples'
  (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE, FILENAME_PATTERN 'part_5_{i}');
COPY (FROM part_of_day(6)) TO 'COMPACT/v1/samples'
  (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE, FILENAME_PATTERN 'part_6_{i}');
COPY (FROM part_of_day(7)) TO 'COMPACT/v1/samples'
  (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), OVERWRITE_OR_IGNORE, FILENAME_PATTERN 'part_7_{i}');
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
