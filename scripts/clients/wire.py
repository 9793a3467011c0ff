"""The little of the Kafka protocol that the scripts need by hand, standard library only: frames, classic (non-flexible)
bodies and record batches v2. Written apart from the Rust codec, so that one cannot hide an error of the other."""
import socket
import struct
import time

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 19, 20, 21, 22

_CRC32C = []
for _value in range(256):
    for _ in range(8):
        _value = (_value >> 1) ^ (0x82F63B78 if _value & 1 else 0)
    _CRC32C.append(_value)


def crc32c(data):
    crc = 0xFFFFFFFF
    table = _CRC32C
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def varint(number):
    """A zigzag variable-length integer, as records use it."""
    number = (number << 1) ^ (number >> 63)
    return uvarint(number & 0xFFFFFFFFFFFFFFFF)


def uvarint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def string(text):
    """STRING or NULLABLE_STRING."""
    if text is None:
        return struct.pack(">h", -1)
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">h", len(data)) + data


def array(items):
    return struct.pack(">i", len(items)) + b"".join(items)


def request(api, version, body, correlation=1, client="ringlog-script"):
    """A frame with request header v1."""
    header = struct.pack(">hhi", api, version, correlation) + string(client)
    return frame(header + body)


def frame(payload):
    return struct.pack(">i", len(payload)) + payload


def record(key=None, value=b"", headers=(), offset_delta=0, timestamp_delta=0):
    body = bytearray(b"\0") + varint(timestamp_delta) + varint(offset_delta)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(len(headers))
    for name, data in headers:
        body += varint(len(name)) + name
        body += varint(-1) if data is None else varint(len(data)) + data
    return varint(len(body)) + bytes(body)


def batch(records, *, codec=0, payload=None, count=None, last_delta=None, base_offset=0, magic=2, attributes=None,
          producer_id=-1, producer_epoch=-1, base_sequence=-1, length=None, crc=None, timestamp=None, crc_flip=0):
    """A record batch v2. Every field may be made to lie; the CRC is right for the lie unless crc or crc_flip says."""
    body = b"".join(records) if payload is None else payload
    count = len(records) if count is None else count
    timestamp = int(time.time() * 1000) if timestamp is None else timestamp
    last_delta = count - 1 if last_delta is None else last_delta
    attributes = codec if attributes is None else attributes
    tail = struct.pack(
        ">hiqqqhii", attributes, last_delta, timestamp, timestamp, producer_id, producer_epoch, base_sequence, count) + body
    crc = (crc32c(tail) if crc is None else crc) ^ crc_flip
    length = 9 + len(tail) if length is None else length
    return struct.pack(">qiibI", base_offset, length, -1, magic, crc) + tail


def produce_body(topic, partition, records, acks=-1, transactional_id=None, timeout_ms=10_000):
    """Produce v3 to v8. `records` is bytes or None."""
    data = struct.pack(">i", -1) if records is None else struct.pack(">i", len(records)) + records
    return string(transactional_id) + struct.pack(">hi", acks, timeout_ms) + array(
        [string(topic) + array([struct.pack(">i", partition) + data])])


def fetch_body(entries, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20):
    """Fetch v4. Entries: (topic, partition, offset, partition max bytes)."""
    topics = [string(topic) + array([struct.pack(">iqi", partition, offset, limit)])
              for topic, partition, offset, limit in entries]
    return struct.pack(">iiiib", -1, max_wait_ms, min_bytes, max_bytes, 0) + array(topics)


def list_offsets_body(topic, partition, timestamp):
    """ListOffsets v1."""
    return struct.pack(">i", -1) + array([string(topic) + array([struct.pack(">iq", partition, timestamp)])])


def create_topics_body(topics, timeout_ms=15_000):
    """CreateTopics v2. Topics: (name, partitions, replication factor, [(partition, [broker])], {config: value})."""
    items = []
    for name, partitions, factor, assignments, configs in topics:
        items.append(
            string(name) + struct.pack(">ih", partitions, factor)
            + array([struct.pack(">i", index) + array([struct.pack(">i", node) for node in nodes])
                     for index, nodes in assignments])
            + array([string(key) + string(value) for key, value in configs.items()]))
    return array(items) + struct.pack(">ib", timeout_ms, 0)


class Reader:
    """Walks a response body."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values[0] if len(values) == 1 else values

    def string(self):
        length = self.take(">h")
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def bytes(self):
        length = self.take(">i")
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length:self.at]

    def array(self, item):
        return [item() for _ in range(max(0, self.take(">i")))]


class Closed(Exception):
    """The peer closed the connection."""


class Connection:
    """One blocking connection."""

    def __init__(self, address, timeout=10.0):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed(str(error)) from error

    def receive_exactly(self, count):
        pieces = bytearray()
        while len(pieces) < count:
            try:
                piece = self.socket.recv(min(1 << 20, count - len(pieces)))
            except ConnectionResetError as error:
                raise Closed(str(error)) from error
            if not piece:
                raise Closed("end of stream")
            pieces += piece
        return bytes(pieces)

    def receive_frame(self):
        """The payload of the next response: correlation id and body."""
        return self.receive_exactly(struct.unpack(">i", self.receive_exactly(4))[0])

    def call(self, api, version, body):
        """One request; returns a Reader behind the correlation id (response header v0)."""
        self.correlation += 1
        self.send(request(api, version, body, self.correlation))
        answer = self.receive_frame()
        got = struct.unpack_from(">i", answer)[0]
        if got != self.correlation:
            raise AssertionError(f"correlation id {got}, expected {self.correlation}")
        reader = Reader(answer)
        reader.at = 4
        return reader

    # What scripts ask.

    def api_versions(self):
        """{api key: (min, max)} from ApiVersions v0."""
        reader = self.call(API_VERSIONS, 0, b"")
        error = reader.take(">h")
        ranges = reader.array(lambda: reader.take(">hhh"))
        if error:
            raise AssertionError(f"ApiVersions answered error {error}")
        return {key: (low, high) for key, low, high in ranges}

    def metadata(self, topics):
        """Metadata v1: {topic: (error, {partition: (error, leader)})}; topics None = all."""
        body = struct.pack(">i", -1) if topics is None else array([string(name) for name in topics])
        reader = self.call(METADATA, 1, body)
        reader.array(lambda: (reader.take(">i"), reader.string(), reader.take(">i"), reader.string()))
        reader.take(">i")
        result = {}

        def partition():
            error, index, leader = reader.take(">hii")
            reader.array(lambda: reader.take(">i"))
            reader.array(lambda: reader.take(">i"))
            return index, (error, leader)

        def topic():
            error, name, _ = reader.take(">h"), reader.string(), reader.take(">b")
            result[name] = (error, dict(reader.array(partition)))

        reader.array(topic)
        return result

    def create_topics(self, topics):
        """{topic: (error, message)}."""
        reader = self.call(CREATE_TOPICS, 2, create_topics_body(topics))
        reader.take(">i")
        return {name: (error, message) for name, error, message in reader.array(
            lambda: (reader.string(), reader.take(">h"), reader.string()))}

    def produce_text(self, topic, partition, records):
        """Produce v8: (error, error message)."""
        reader = self.call(PRODUCE, 8, produce_body(topic, partition, records))
        reader.take(">i")
        reader.string()
        reader.take(">i")
        _, error, _, _, _ = reader.take(">ihqqq")
        reader.array(lambda: (reader.take(">i"), reader.string()))
        return error, reader.string()

    def produce(self, topic, partition, records, acks=-1, version=7, transactional_id=None):
        """Produce v5 to v7: (error, base offset); None with acks=0."""
        body = produce_body(topic, partition, records, acks, transactional_id)
        if acks == 0:
            self.send(request(PRODUCE, version, body))
            return None
        reader = self.call(PRODUCE, version, body)
        reader.take(">i")
        reader.string()
        reader.take(">i")
        _, error, base = reader.take(">ihq")
        return error, base

    def fetch(self, entries, **limits):
        """Fetch v4: list of (topic, partition, error, high watermark, records)."""
        reader = self.call(FETCH, 4, fetch_body(entries, **limits))
        reader.take(">i")
        result = []

        def topic():
            name = reader.string()

            def partition():
                index, error, high, _ = reader.take(">ihqq")
                reader.array(lambda: reader.take(">qq"))
                result.append((name, index, error, high, reader.bytes() or b""))

            reader.array(partition)

        reader.array(topic)
        return result

    def list_offset(self, topic, partition, timestamp):
        """ListOffsets v1: (error, timestamp, offset)."""
        reader = self.call(LIST_OFFSETS, 1, list_offsets_body(topic, partition, timestamp))
        reader.take(">i")
        reader.string()
        reader.take(">i")
        return reader.take(">ihqq")[1:]

    def delete_records(self, topic, partition, before, timeout_ms=10_000):
        """DeleteRecords v1: (error, low watermark)."""
        body = array([string(topic) + array([struct.pack(">iq", partition, before)])]) + struct.pack(">i", timeout_ms)
        reader = self.call(DELETE_RECORDS, 1, body)
        reader.take(">ii")
        reader.string()
        reader.take(">i")
        _, low_watermark, error = reader.take(">iqh")
        return error, low_watermark


def create_and_wait(address, topics, timeout=20.0):
    """Creates {name: partitions} and waits until each partition has a leader."""
    with Connection(address) as peer:
        answers = peer.create_topics([(name, count, 1, [], {}) for name, count in topics.items()])
        bad = {name: answer for name, answer in answers.items() if answer[0] not in (0, 36)}
        if bad:
            raise AssertionError(f"CreateTopics: {bad}")
        deadline = time.monotonic() + timeout
        while True:
            known = peer.metadata(list(topics))
            # Kafka names a leader before that leader serves; with acks=0 a record sent in between is lost without a word.
            if all(known[name][0] == 0 and len(known[name][1]) == count
                   and all(error == 0 and leader >= 0 for error, leader in known[name][1].values())
                   and all(peer.list_offset(name, index, -1)[0] == 0 for index in range(count))
                   for name, count in topics.items()):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"topics without a leader after {timeout:.0f} s")
            time.sleep(0.05)
