"""Asks every question of fleet/ of one engine, makes larger files of a day and asks again, and prints the answers as
JSON.

Usage: ask.py duckdb|spark FLEET LAKE DAY [MASTER]
"""
import json
import sys
from pathlib import Path

engine, fleet, lake, day = sys.argv[1:5]
PARTS = {
    'chosen': 'SELECT * FROM samples',
    'part': "SELECT * FROM samples WHERE mode = 'user'",
    'before': "SELECT * FROM samples WHERE kernel = '6.1.0-25'",
    'after': "SELECT * FROM samples WHERE kernel = '6.1.0-26'",
    'before_vms': "SELECT * FROM vms WHERE kernel = '6.1.0-25'",
    'after_vms': "SELECT * FROM vms WHERE kernel = '6.1.0-26'",
    'chosen_vms': 'SELECT * FROM vms',
    'chosen_vcpus': 'SELECT * FROM vcpus',
}


def duckdb():
    import duckdb
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    def run(sql):
        answer = connection.execute(sql)
        names = [column[0] for column in answer.description or []]
        return [dict(zip(names, row)) for row in answer.fetchall()]
    return run, 'CREATE VIEW'


def spark():
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master(sys.argv[5] if len(sys.argv) > 5 else 'local[1]')
    settings = {
        'spark.ui.enabled': 'false',
        'spark.sql.session.timeZone': 'UTC',
        'spark.sql.shuffle.partitions': '2',
        'spark.driver.host': '127.0.0.1',
        'spark.driver.bindAddress': '127.0.0.1',
        'spark.executor.memory': '600m',
        'spark.cores.max': '2',
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel('ERROR')
    return (lambda sql: [row.asDict() for row in session.sql(sql).collect()]), 'CREATE TEMPORARY VIEW'


def plain(value):
    # JSON has numbers, texts and null; engines write times in several ways.
    if value is None or isinstance(value, (int, float)):
        return value
    text = str(value)
    return text[:19].replace('T', ' ') if text[:2] == '20' and text[4:5] == '-' else text


run, create = globals()[engine]()


def run_file(path, replaced):
    text = Path(fleet, path).read_text()
    for name, value in replaced.items():
        text = text.replace(name, value)
    lines = [line for line in text.splitlines() if not line.startswith('--')]
    for statement in '\n'.join(lines).split(';\n'):
        if statement.strip(' \n;'):
            run(statement.strip(' \n;'))


def answers(lake):
    for view in ('samples', 'stacks', 'vcpus', 'tasks', 'vms', *PARTS):
        run(f'DROP VIEW IF EXISTS {view}')
    run_file(f'views/{engine}.sql', {'LAKE': lake})
    for name, sql in PARTS.items():
        run(f'{create} {name} AS {sql}')
    answers = {}
    for question in sorted(Path(fleet).glob('*.sql')):
        rows = run(question.read_text())
        answers[question.stem] = [{name: plain(value) for name, value in row.items()} for row in rows]
    return answers


found = {'lake': answers(lake)}
compact = lake + '-of-' + engine
Path(compact, 'v1').mkdir(parents=True)
# The second time replaces what the first has written.
for _ in range(2):
    run_file(f'compact/{engine}.sql', {'COMPACT': compact, 'DAY': day})
found['compact'] = answers(compact)
json.dump(found, sys.stdout)
