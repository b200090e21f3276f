"""Makes a bucket, lists one, or reads its Parquet files, by pyarrow's client of S3.

Usage: s3.py ENDPOINT make|list|sum BUCKET
"""
import json
import sys

import pyarrow.dataset
from pyarrow import fs

endpoint, action, bucket = sys.argv[1:]
store = fs.S3FileSystem(
    access_key='vprof', secret_key='secret', region='us-east-1', scheme='http', endpoint_override=endpoint,
    allow_bucket_creation=True, connect_timeout=5, request_timeout=10,
)
if action == 'make':
    store.create_dir(bucket)
elif action == 'list':
    found = store.get_file_info(fs.FileSelector(bucket, recursive=True))
    files = {}
    for file in found:
        if file.type == fs.FileType.File:
            with store.open_input_stream(file.path) as stream:
                files[file.path] = stream.read().hex()
    print(json.dumps(files))
else:
    table = pyarrow.dataset.dataset(bucket, filesystem=store, format='parquet').to_table()
    print(json.dumps({'samples': sum(table['samples'].to_pylist()), 'weight_ns': sum(table['weight_ns'].to_pylist())}))
