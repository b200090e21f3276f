-- The lake's tables in Apache Spark. LAKE is the directory, or an address like s3a://bucket/path.
CREATE OR REPLACE TEMPORARY VIEW samples USING parquet OPTIONS (path 'LAKE/v1/samples');
CREATE OR REPLACE TEMPORARY VIEW stacks USING parquet OPTIONS (path 'LAKE/v1/stacks');
CREATE OR REPLACE TEMPORARY VIEW vcpus USING parquet OPTIONS (path 'LAKE/v1/vcpus');
CREATE OR REPLACE TEMPORARY VIEW tasks USING parquet OPTIONS (path 'LAKE/v1/tasks');
CREATE OR REPLACE TEMPORARY VIEW vms USING parquet OPTIONS (path 'LAKE/v1/vms');
