"""Values ⇄ canonical JSON bytes ⇄ what is stored. Pure: no I/O, clock, randomness or threads.

    values.py       a value under a type hint ⇄ canonical JSON        codec_for(hint).dumps / .loads
    arguments.py    the arguments of a call ⇄ canonical JSON          arguments_codec_for(fn)
    exceptions.py   an exception ⇄ canonical JSON                     dump_exception, load_exception, told_exception
    views.py        canonical JSON without the noise                  without(raw, paths)
    digests.py      canonical JSON → 32 bytes                         digest(raw)
    packing.py      canonical JSON ⇄ inline bytes and shared blobs    pack, unpack, Memo

Below them: hints.py compiles a hint to a Shape (shape.py) out of plain.py, scalars.py, containers.py, records.py,
models.py and unions.py; canonical.py writes RFC 8785.
"""

from perdure.codec.arguments import ArgumentsCodec, arguments_codec_for
from perdure.codec.digests import digest
from perdure.codec.exceptions import dump_exception, load_exception, told_exception
from perdure.codec.packing import Memo, Packed, pack, unpack
from perdure.codec.resolving import is_no_type
from perdure.codec.values import ValueCodec, about_result, codec_for, describe
from perdure.codec.views import Every, begins_at, without

__all__ = [
    "ArgumentsCodec",
    "Every",
    "Memo",
    "Packed",
    "ValueCodec",
    "about_result",
    "arguments_codec_for",
    "begins_at",
    "codec_for",
    "describe",
    "digest",
    "dump_exception",
    "is_no_type",
    "load_exception",
    "pack",
    "told_exception",
    "unpack",
    "without",
]
