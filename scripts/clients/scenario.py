#!/usr/bin/env python3
"""Writes the records that every client of the matrix produces and reads back, one JSON object a line, from a seed.

A record: {"key": base64 or null, "value": base64 or null, "headers": [[name, base64 or null], ...], "timestamp": ms or null}.
A null timestamp is chosen by the client and not compared. The same arguments always give the same file.

Profiles, because not every tool can express every record:
  full     keys, headers and values of any bytes, nulls, empties, a record near 1 MB (libraries)
  keyed    full, but no record with neither key nor value and no null header value (kafka-python refuses to send them)
  kcat     any key and value bytes; header text that fits a command line; no empty value without a key
  console  one line of text a record, as the console producer of the Kafka tools reads it
"""
import argparse
import base64
import json
import random
import sys
import time

LARGE_VALUE_BYTES = 1_000_000
PROFILES = ("full", "keyed", "kcat", "console")
# What no generated kcat or console record may contain: the separators and markers of those tools.
KCAT_KEY_SEPARATOR = b"<|key|>"
KCAT_RECORD_SEPARATOR = b"<|record|>"
CONSOLE_FORBIDDEN = "\t\r\n:,"
NULL_MARKER = "<null>"

UNICODE_TEXTS = ["Grüße aus Köln", "日本語のメッセージ", "🦀🚀 café e\u0301", "Ω≈ç√∫˜µ≤≥÷", "שלום עולם", "a\u0000b"]


def _bytes(rng, length):
    return rng.randbytes(length)


def _full_record(rng, index):
    kinds = [
        lambda: (None, b"value without key", []),
        lambda: (b"key without value", None, []),
        lambda: (None, None, []),
        lambda: (b"", b"", []),
        lambda: (b"", None, [("empty key, null value", b"")]),
        lambda: (None, b"", [("null header value", None)]),
        lambda: (b"k", b"v", [("empty header value", b""), ("null", None), ("text", b"abc")]),
        lambda: (b"k", b"v", [("same name", b"1"), ("same name", b"2"), ("same name", None)]),
        lambda: (b"k", b"v", [("ünïcödé-名前", "wert-値".encode())]),
        lambda: (bytes(range(256)), bytes(range(255, -1, -1)), [("all bytes", bytes(range(256)))]),
        lambda: (b"\x00", b"\xff\xfe\x00\x01", [("zero", b"\x00")]),
        lambda: (b"\n", b"line one\nline two\r\n\ttabs", []),
    ]
    kinds += [lambda text=text: (text.encode(), (text * 3).encode(), [("t", text.encode())]) for text in UNICODE_TEXTS]
    if index < len(kinds):
        return kinds[index]()
    key = rng.choice([None, b"", _bytes(rng, rng.randrange(1, 40)), f"key-{index}".encode()])
    value = rng.choice([None, b"", _bytes(rng, rng.randrange(1, 3000)), (f"value {index} " * rng.randrange(1, 60)).encode()])
    headers = [
        (f"h{number}", rng.choice([None, b"", _bytes(rng, rng.randrange(1, 30))])) for number in range(rng.randrange(0, 4))
    ]
    return key, value, headers


def _keyed_record(rng, index):
    key, value, headers = _full_record(rng, index)
    key = b"key" if key is None and value is None else key
    return key, value, [(name, b"" if data is None else data) for name, data in headers]


def _large_record(rng):
    # Half noise, half text: no codec makes it vanish, every codec makes it smaller.
    noise = _bytes(rng, LARGE_VALUE_BYTES // 2)
    text = (b"the quick brown fox jumps over the lazy dog. " * (LARGE_VALUE_BYTES // 90 + 1))[: LARGE_VALUE_BYTES - len(noise)]
    return b"large", noise + text, [("size", str(LARGE_VALUE_BYTES).encode())]


def _kcat_record(rng, index):
    # kcat takes headers by command line, so they change every 25 records only.
    headers = [[], [("source", b"kcat"), ("run", str(index // 25).encode())], [("note", "größe".encode())]][(index // 25) % 3]
    while True:
        key = rng.choice([None, _bytes(rng, rng.randrange(1, 40)), f"key-{index}".encode()])
        value = rng.choice([None, _bytes(rng, rng.randrange(1, 3000)), (UNICODE_TEXTS[index % 5] * 5).encode()])
        if key is None and value is None:
            value = b"neither key nor value would be an empty line"
        if not any(mark in (key or b"") + (value or b"") for mark in (KCAT_KEY_SEPARATOR, KCAT_RECORD_SEPARATOR)):
            return key, value, headers


def _console_text(rng, length):
    alphabet = "".join(chr(code) for code in range(33, 127) if chr(code) not in CONSOLE_FORBIDDEN + "<>") + "äößé値🦀"
    return "".join(rng.choice(alphabet) for _ in range(length)).encode()


def _console_record(rng, index):
    key = rng.choice([None, b"", _console_text(rng, rng.randrange(1, 20))])
    value = rng.choice([None, b"", _console_text(rng, rng.randrange(1, 400))])
    headers = [
        (f"h{number}", rng.choice([None, _console_text(rng, rng.randrange(1, 12))])) for number in range(1 + index % 3)
    ]
    return key, value, headers


def generate(seed, count, profile, base_timestamp_ms):
    """Yields (key, value, headers, timestamp) for each record."""
    rng = random.Random(f"ringlog clients {seed} {profile}")
    make = {"full": _full_record, "keyed": _keyed_record, "kcat": _kcat_record, "console": _console_record}[profile]
    for index in range(count):
        timestamp = base_timestamp_ms + index * 7 if profile in ("full", "keyed") else None
        if index == count // 2 and profile != "console":
            key, value, headers = _large_record(rng)
            if profile == "kcat":
                headers = []
                while KCAT_KEY_SEPARATOR in value or KCAT_RECORD_SEPARATOR in value:
                    key, value, _ = _large_record(rng)
        else:
            key, value, headers = make(rng, index)
        yield key, value, headers, timestamp


def encode(data):
    return None if data is None else base64.b64encode(data).decode()


def write(path, seed, count, profile, base_timestamp_ms):
    """Writes the file; returns nothing. Overwrites."""
    with open(path, "w", encoding="utf-8") as out:
        for key, value, headers, timestamp in generate(seed, count, profile, base_timestamp_ms):
            line = {
                "key": encode(key),
                "value": encode(value),
                "headers": [[name, encode(data)] for name, data in headers],
                "timestamp": timestamp,
            }
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="1", help="any text; the same text gives the same records")
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--profile", choices=PROFILES, default="full")
    parser.add_argument("--base-timestamp-ms", type=int, default=int(time.time() * 1000) - 3_600_000)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    write(args.out, args.seed, args.records, args.profile, args.base_timestamp_ms)
    return 0


if __name__ == "__main__":
    sys.exit(main())
