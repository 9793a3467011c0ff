package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// header is a name and its value; nil is null.
type header struct {
	name  string
	value []byte
}

// record is one record to write, or one that was read; nil is null. timestamp is in milliseconds, nil where the client chooses it.
type record struct {
	key, value []byte
	headers    []header
	timestamp  *int64
	offset     int64
}

// line is one line of a specification; []byte fields are base64 in JSON, nil is null.
type line struct {
	Key       *[]byte              `json:"key"`
	Value     *[]byte              `json:"value"`
	Headers   [][2]json.RawMessage `json:"headers"`
	Timestamp *int64               `json:"timestamp"`
}

// nullable keeps null and empty apart by nil, as all three clients do.
func nullable(data *[]byte) []byte {
	if data == nil {
		return nil
	}
	if *data == nil {
		return []byte{}
	}
	return *data
}

func loadSpecification(path string) ([]record, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []record
	decoder := json.NewDecoder(bufio.NewReaderSize(file, 1<<20))
	for decoder.More() {
		var next line
		if err := decoder.Decode(&next); err != nil {
			return nil, err
		}
		item := record{key: nullable(next.Key), value: nullable(next.Value), timestamp: next.Timestamp}
		for _, pair := range next.Headers {
			var name string
			var data *[]byte
			if err := json.Unmarshal(pair[0], &name); err != nil {
				return nil, err
			}
			if err := json.Unmarshal(pair[1], &data); err != nil {
				return nil, err
			}
			item.headers = append(item.headers, header{name, nullable(data)})
		}
		all = append(all, item)
	}
	return all, nil
}

func show(data []byte) string {
	if data == nil {
		return "null"
	}
	if len(data) > 24 {
		return fmt.Sprintf("%d bytes %q...", len(data), data[:24])
	}
	return fmt.Sprintf("%d bytes %q", len(data), data)
}

// sameBytes keeps null and empty apart.
func sameBytes(field string, index int, expected, got []byte) error {
	if (expected == nil) == (got == nil) && bytes.Equal(expected, got) {
		return nil
	}
	at := 0
	for at < len(expected) && at < len(got) && expected[at] == got[at] {
		at++
	}
	return fmt.Errorf("record %d: %s: expected %s, read %s (first difference at byte %d)", index, field, show(expected), show(got), at)
}

func compare(index int, expected, got record) error {
	if got.offset != expected.offset {
		return fmt.Errorf("record %d: offset: expected %d, read %d", index, expected.offset, got.offset)
	}
	if err := sameBytes("key", index, expected.key, got.key); err != nil {
		return err
	}
	if err := sameBytes("value", index, expected.value, got.value); err != nil {
		return err
	}
	if len(expected.headers) != len(got.headers) {
		return fmt.Errorf("record %d: expected %d headers, read %d", index, len(expected.headers), len(got.headers))
	}
	for number, want := range expected.headers {
		have := got.headers[number]
		if want.name != have.name {
			return fmt.Errorf("record %d: header name: expected %q, read %q", index, want.name, have.name)
		}
		if err := sameBytes("header "+want.name, index, want.value, have.value); err != nil {
			return err
		}
	}
	if expected.timestamp != nil && *expected.timestamp != *got.timestamp {
		return fmt.Errorf("record %d: timestamp: expected %d, read %d", index, *expected.timestamp, *got.timestamp)
	}
	return nil
}

// comparison takes what a client reads, one record after the other. emptyIsNull is for a client that gives null for both.
type comparison struct {
	expected    []record
	first       int64
	index       int
	emptyIsNull bool
}

func (c *comparison) done() bool { return c.index >= len(c.expected) }

func (c *comparison) next(got record) error {
	if c.done() {
		return fmt.Errorf("one record more than the %d expected, at offset %d", len(c.expected), got.offset)
	}
	want := c.expected[c.index]
	want.offset = c.first + int64(c.index)
	if c.emptyIsNull {
		want = withoutEmpty(want)
	}
	if err := compare(c.index, want, got); err != nil {
		return err
	}
	c.index++
	return nil
}

// withoutEmpty is the record as a client tells it that gives null for what is empty.
func withoutEmpty(item record) record {
	null := func(data []byte) []byte {
		if len(data) == 0 {
			return nil
		}
		return data
	}
	item.key, item.value = null(item.key), null(item.value)
	headers := item.headers
	item.headers = nil
	for _, pair := range headers {
		item.headers = append(item.headers, header{pair.name, null(pair.value)})
	}
	return item
}

func (c *comparison) missing() error {
	return fmt.Errorf("%d of %d records within %s", c.index, len(c.expected), consumeDeadline)
}

// sameEnds holds the offsets of a partition, as the client asked for them, against what was written.
func (c *comparison) sameEnds(start, end int64) error {
	if want := c.first + int64(len(c.expected)); start != 0 || end != want {
		return fmt.Errorf("offsets %d to %d, expected 0 to %d", start, end, want)
	}
	return nil
}

// oneRun fails unless the offsets that the broker gave follow each other.
func oneRun(offsets []int64) error {
	for index, offset := range offsets {
		if offset != offsets[0]+int64(index) {
			return fmt.Errorf("offsets are not one run: record %d at %d after %d", index, offset, offsets[0])
		}
	}
	return nil
}
