-- The lake's tables in ClickHouse. LAKE is the directory, or file() becomes s3() with an address like https://host/bucket/path.
CREATE VIEW samples AS SELECT * FROM file('LAKE/v1/samples/*/*/*.parquet', Parquet);
CREATE VIEW stacks AS SELECT * FROM file('LAKE/v1/stacks/*/*/*.parquet', Parquet);
CREATE VIEW vcpus AS SELECT * FROM file('LAKE/v1/vcpus/*/*/*.parquet', Parquet);
CREATE VIEW tasks AS SELECT * FROM file('LAKE/v1/tasks/*/*/*.parquet', Parquet);
CREATE VIEW vms AS SELECT * FROM file('LAKE/v1/vms/*/*/*.parquet', Parquet);
