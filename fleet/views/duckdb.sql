-- The lake's tables in DuckDB. LAKE is the directory, or an address like s3://bucket/path.
CREATE OR REPLACE VIEW samples AS SELECT * FROM read_parquet('LAKE/v1/samples/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW stacks AS SELECT * FROM read_parquet('LAKE/v1/stacks/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW vcpus AS SELECT * FROM read_parquet('LAKE/v1/vcpus/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW tasks AS SELECT * FROM read_parquet('LAKE/v1/tasks/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
CREATE OR REPLACE VIEW vms AS SELECT * FROM read_parquet('LAKE/v1/vms/*/*/*.parquet', hive_partitioning = true, union_by_name = true);
