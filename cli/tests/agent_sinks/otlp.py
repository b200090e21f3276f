"""Decodes requests of OTLP profiles by OpenTelemetry's own messages, and prints them with their tables resolved.

Usage: otlp.py FILE...
"""
import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest


def check(message):
    """Asserts that a message has no field that the definition lacks."""
    assert len(UnknownFieldSet(message)) == 0, message.DESCRIPTOR.name
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                check(part)


def value_of(any_value):
    kind = any_value.WhichOneof('value')
    return getattr(any_value, kind) if kind else None


rows = []
for path in sys.argv[1:]:
    request = ExportProfilesServiceRequest()
    with open(path, 'rb') as file:
        request.ParseFromString(file.read())
    check(request)
    tables = request.dictionary
    texts = tables.string_table

    def attributes(indices):
        found = {}
        for index in indices:
            attribute = tables.attribute_table[index]
            found[texts[attribute.key_strindex]] = value_of(attribute.value)
        return found

    for resource in request.resource_profiles:
        machine = {pair.key: value_of(pair.value) for pair in resource.resource.attributes}
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                kind = (texts[profile.sample_type.type_strindex], texts[profile.sample_type.unit_strindex])
                for sample in profile.samples:
                    stack, frames = [], []
                    for index in tables.stack_table[sample.stack_index].location_indices:
                        location = tables.location_table[index]
                        mapping = tables.mapping_table[location.mapping_index]
                        frames.append({
                            'address': location.address,
                            'file': texts[mapping.filename_strindex],
                            'inside': mapping.memory_start <= location.address < mapping.memory_limit,
                            **attributes(location.attribute_indices), **attributes(mapping.attribute_indices),
                        })
                        for line in location.lines:
                            stack.append(texts[tables.function_table[line.function_index].name_strindex])
                    rows.append({
                        'machine': machine, 'scope': scope.scope.name, 'type': kind[0], 'unit': kind[1],
                        'time': profile.time_unix_nano, 'duration': profile.duration_nano,
                        'period': profile.period, 'id': profile.profile_id.hex(),
                        'value': list(sample.values), 'stack': stack, 'frames': frames,
                        'attributes': attributes(sample.attribute_indices),
                    })
print(json.dumps(rows))
