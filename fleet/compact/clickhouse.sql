-- Larger files for a day of the lake, in place of one for each host, window and table. Run it once a day is over, and
-- then let the readers use COMPACT in place of LAKE. LAKE is replaced in the views (../views/clickhouse.sql), which come
-- first; COMPACT and DAY (as 2026-11-23) here. With an object store, file() becomes s3(). Run again, it replaces the day.
-- The directories of the files must be there.
INSERT INTO FUNCTION file('COMPACT/v1/samples/day=DAY/hour=all/all.parquet', Parquet)
SELECT * FROM samples WHERE toDate(t) = 'DAY' ORDER BY vm, process, function
SETTINGS engine_file_truncate_on_insert = 1, output_format_parquet_compression_method = 'zstd';
-- The same stack of several hosts and windows has one row.
INSERT INTO FUNCTION file('COMPACT/v1/stacks/day=DAY/hour=all/all.parquet', Parquet)
SELECT min(t) AS t, min(host) AS host, stack, min(depth) AS depth, min(frames) AS frames,
  min(doubtful) AS doubtful, min(reason) AS reason
FROM (SELECT * FROM stacks WHERE toDate(t) = 'DAY') GROUP BY stack ORDER BY stack
SETTINGS engine_file_truncate_on_insert = 1, output_format_parquet_compression_method = 'zstd';
INSERT INTO FUNCTION file('COMPACT/v1/vcpus/day=DAY/hour=all/all.parquet', Parquet)
SELECT * FROM vcpus WHERE toDate(t) = 'DAY' ORDER BY host, vm
SETTINGS engine_file_truncate_on_insert = 1, output_format_parquet_compression_method = 'zstd';
INSERT INTO FUNCTION file('COMPACT/v1/tasks/day=DAY/hour=all/all.parquet', Parquet)
SELECT * FROM tasks WHERE toDate(t) = 'DAY' ORDER BY host, vm, process
SETTINGS engine_file_truncate_on_insert = 1, output_format_parquet_compression_method = 'zstd';
INSERT INTO FUNCTION file('COMPACT/v1/vms/day=DAY/hour=all/all.parquet', Parquet)
SELECT * FROM vms WHERE toDate(t) = 'DAY' ORDER BY host, vm
SETTINGS engine_file_truncate_on_insert = 1, output_format_parquet_compression_method = 'zstd';
