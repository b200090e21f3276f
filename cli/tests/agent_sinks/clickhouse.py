"""Runs the statements in a file by ClickHouse's engine, and prints the rows of their answers as JSON, one a line.

Usage: clickhouse.py FILE
"""
import sys
from pathlib import Path

from chdb import session

session = session.Session()
session.query('CREATE DATABASE lake ENGINE = Memory')
session.query('USE lake')
for statement in Path(sys.argv[1]).read_text().split(';\n'):
    if statement.strip():
        print(session.query(statement, 'JSONEachRow'), end='')
