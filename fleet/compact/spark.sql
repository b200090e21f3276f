-- Larger files for a day of the lake, in place of one for each host, window and table. Run it once a day is over, and
-- then let the readers use COMPACT in place of LAKE; both may be addresses like s3a://bucket/path. LAKE is replaced in
-- the views (../views/spark.sql), which come first; COMPACT and DAY (as 2026-11-23) here. Run again, it replaces the
-- day.
SET spark.sql.adaptive.advisoryPartitionSizeInBytes = 256m;
INSERT OVERWRITE DIRECTORY 'COMPACT/v1/samples/day=DAY/hour=all' USING parquet OPTIONS (compression 'zstd')
SELECT /*+ REBALANCE(vm) */ * EXCEPT (day, hour) FROM samples WHERE day = DATE 'DAY' SORT BY vm, process, function;
-- The same stack of several hosts and windows has one row.
INSERT OVERWRITE DIRECTORY 'COMPACT/v1/stacks/day=DAY/hour=all' USING parquet OPTIONS (compression 'zstd')
SELECT /*+ REBALANCE */ min(t) AS t, min(host) AS host, stack, min(depth) AS depth, min(frames) AS frames,
  min(doubtful) AS doubtful, min(reason) AS reason
FROM stacks WHERE day = DATE 'DAY' GROUP BY stack;
INSERT OVERWRITE DIRECTORY 'COMPACT/v1/vcpus/day=DAY/hour=all' USING parquet OPTIONS (compression 'zstd')
SELECT /*+ REBALANCE(vm) */ * EXCEPT (day, hour) FROM vcpus WHERE day = DATE 'DAY' SORT BY host, vm;
INSERT OVERWRITE DIRECTORY 'COMPACT/v1/tasks/day=DAY/hour=all' USING parquet OPTIONS (compression 'zstd')
SELECT /*+ REBALANCE(vm) */ * EXCEPT (day, hour) FROM tasks WHERE day = DATE 'DAY' SORT BY host, vm, process;
INSERT OVERWRITE DIRECTORY 'COMPACT/v1/vms/day=DAY/hour=all' USING parquet OPTIONS (compression 'zstd')
SELECT /*+ REBALANCE(vm) */ * EXCEPT (day, hour) FROM vms WHERE day = DATE 'DAY' SORT BY host, vm;
