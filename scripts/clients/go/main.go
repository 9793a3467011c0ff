// The franz-go client of the matrix. Command line: see ../common.py.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const consumeDeadline = 15 * time.Second

// job is one line of a batch file, or one command line.
type job struct {
	ID         string `json:"id"`
	Action     string `json:"action"`
	Bootstrap  string `json:"bootstrap"`
	Topic      string `json:"topic"`
	Partition  int32  `json:"partition"`
	Spec       string `json:"spec"`
	Codec      string `json:"codec"`
	Acks       string `json:"acks"`
	Idempotent bool   `json:"idempotent"`
	Expect     string `json:"expect"`
	From       string `json:"from"`
}

type result struct {
	ID      string  `json:"id"`
	OK      bool    `json:"ok"`
	Detail  string  `json:"detail"`
	Seconds float64 `json:"seconds"`
	Client  string  `json:"client"`
}

// record is one line of a specification; []byte fields are base64 in JSON, nil is null.
type record struct {
	Key       *[]byte              `json:"key"`
	Value     *[]byte              `json:"value"`
	Headers   [][2]json.RawMessage `json:"headers"`
	Timestamp *int64               `json:"timestamp"`
}

type specification struct {
	key, value []byte
	headers    []kgo.RecordHeader
	timestamp  *int64
}

// nullable keeps null and empty apart: franz-go tells them by nil.
func nullable(data *[]byte) []byte {
	if data == nil {
		return nil
	}
	if *data == nil {
		return []byte{}
	}
	return *data
}

func loadSpecification(path string) ([]specification, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []specification
	decoder := json.NewDecoder(bufio.NewReaderSize(file, 1<<20))
	for decoder.More() {
		var line record
		if err := decoder.Decode(&line); err != nil {
			return nil, err
		}
		item := specification{key: nullable(line.Key), value: nullable(line.Value), timestamp: line.Timestamp}
		for _, pair := range line.Headers {
			var name string
			var data *[]byte
			if err := json.Unmarshal(pair[0], &name); err != nil {
				return nil, err
			}
			if err := json.Unmarshal(pair[1], &data); err != nil {
				return nil, err
			}
			item.headers = append(item.headers, kgo.RecordHeader{Key: name, Value: nullable(data)})
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

func compare(index int, expected specification, got *kgo.Record, offset int64) error {
	if got.Offset != offset {
		return fmt.Errorf("record %d: offset: expected %d, read %d", index, offset, got.Offset)
	}
	if err := sameBytes("key", index, expected.key, got.Key); err != nil {
		return err
	}
	if err := sameBytes("value", index, expected.value, got.Value); err != nil {
		return err
	}
	if len(expected.headers) != len(got.Headers) {
		return fmt.Errorf("record %d: expected %d headers, read %d", index, len(expected.headers), len(got.Headers))
	}
	for number, header := range expected.headers {
		if header.Key != got.Headers[number].Key {
			return fmt.Errorf("record %d: header name: expected %q, read %q", index, header.Key, got.Headers[number].Key)
		}
		if err := sameBytes("header "+header.Key, index, header.Value, got.Headers[number].Value); err != nil {
			return err
		}
	}
	if expected.timestamp != nil && *expected.timestamp != got.Timestamp.UnixMilli() {
		return fmt.Errorf("record %d: timestamp: expected %d, read %d", index, *expected.timestamp, got.Timestamp.UnixMilli())
	}
	return nil
}

func codecOf(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	}
	return kgo.CompressionCodec{}, fmt.Errorf("unknown codec %q", name)
}

func produce(task job) (string, error) {
	records, err := loadSpecification(task.Spec)
	if err != nil {
		return "", err
	}
	codec, err := codecOf(task.Codec)
	if err != nil {
		return "", err
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(task.Bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codec),
		kgo.ProducerBatchMaxBytes(1 << 20),
		kgo.ProducerLinger(20 * time.Millisecond),
		// No RecordDeliveryTimeout: it counts from the record's own timestamp, which lies in the past here.
	}
	switch task.Acks {
	case "0":
		options = append(options, kgo.RequiredAcks(kgo.NoAck()))
	case "1":
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()))
	case "all":
		options = append(options, kgo.RequiredAcks(kgo.AllISRAcks()))
	default:
		return "", fmt.Errorf("unknown acks %q", task.Acks)
	}
	if !task.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	var failure error
	offsets := make([]int64, 0, len(records))
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	for _, item := range records {
		message := &kgo.Record{Topic: task.Topic, Partition: task.Partition, Key: item.key, Value: item.value, Headers: item.headers}
		if item.timestamp != nil {
			message.Timestamp = time.UnixMilli(*item.timestamp)
		}
		client.Produce(ctx, message, func(done *kgo.Record, err error) {
			if err != nil && failure == nil {
				failure = err
			}
			offsets = append(offsets, done.Offset)
		})
	}
	if err := client.Flush(ctx); err != nil {
		return "", err
	}
	if failure != nil {
		return "", failure
	}
	if task.Acks == "0" {
		// Nothing says that the bytes have left; a connection closed at once may lose them.
		time.Sleep(300 * time.Millisecond)
	}
	if task.Acks != "0" {
		for index, offset := range offsets {
			if offset != offsets[0]+int64(index) {
				return "", fmt.Errorf("offsets are not one run: record %d at %d after %d", index, offset, offsets[0])
			}
		}
	}
	return fmt.Sprintf("%d records", len(records)), nil
}

func consume(task job) (string, error) {
	expected, err := loadSpecification(task.Expect)
	if err != nil {
		return "", err
	}
	var first int64
	if task.From != "" && task.From != "beginning" {
		if first, err = strconv.ParseInt(task.From, 10, 64); err != nil {
			return "", err
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(task.Bootstrap),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{task.Topic: {task.Partition: kgo.NewOffset().At(first)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(50*time.Millisecond),
	)
	if err != nil {
		return "", err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), consumeDeadline)
	defer cancel()
	index := 0
	for index < len(expected) {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return "", fmt.Errorf("%d of %d records within %s", index, len(expected), consumeDeadline)
		}
		var failures []error
		fetches.EachError(func(topic string, partition int32, err error) {
			failures = append(failures, fmt.Errorf("%s-%d: %w", topic, partition, err))
		})
		if len(failures) > 0 {
			return "", errors.Join(failures...)
		}
		for _, got := range fetches.Records() {
			if index >= len(expected) {
				return "", fmt.Errorf("one record more than the %d expected, at offset %d", len(expected), got.Offset)
			}
			if err := compare(index, expected[index], got, first+int64(index)); err != nil {
				return "", err
			}
			index++
		}
	}
	admin := kadm.NewClient(client)
	for name, list := range map[string]func(context.Context, ...string) (kadm.ListedOffsets, error){
		"start": admin.ListStartOffsets, "end": admin.ListEndOffsets,
	} {
		offsets, err := list(ctx, task.Topic)
		if err != nil {
			return "", err
		}
		listed, found := offsets.Lookup(task.Topic, task.Partition)
		if !found || listed.Err != nil {
			return "", fmt.Errorf("%s offset: %v", name, listed.Err)
		}
		want := int64(0)
		if name == "end" {
			want = first + int64(len(expected))
		}
		if listed.Offset != want {
			return "", fmt.Errorf("%s offset %d, expected %d", name, listed.Offset, want)
		}
	}
	return fmt.Sprintf("%d records", len(expected)), nil
}

func clientName() string {
	version := "unknown"
	if info, found := debug.ReadBuildInfo(); found {
		for _, dependency := range info.Deps {
			if dependency.Path == "github.com/twmb/franz-go" {
				version = dependency.Version
			}
		}
	}
	return "franz-go " + version
}

func run(task job) bool {
	begin := time.Now()
	var detail string
	var err error
	switch task.Action {
	case "produce":
		detail, err = produce(task)
	case "consume":
		detail, err = consume(task)
	default:
		err = fmt.Errorf("unknown action %q", task.Action)
	}
	if err != nil {
		detail = err.Error()
	}
	line, _ := json.Marshal(result{task.ID, err == nil, detail, time.Since(begin).Seconds(), clientName()})
	fmt.Println(string(line))
	return err == nil
}

func usage(err error) {
	fmt.Fprintln(os.Stderr, "usage: franz-go-client produce|consume|batch OPTIONS (see common.py)", err)
	os.Exit(2)
}

func main() {
	if len(os.Args) < 2 {
		usage(nil)
	}
	task := job{Action: os.Args[1]}
	flags := flag.NewFlagSet(task.Action, flag.ExitOnError)
	jobs := flags.String("jobs", "", "file of jobs, one JSON object a line")
	partition := flags.Int("partition", 0, "partition")
	flags.StringVar(&task.Bootstrap, "bootstrap", "", "HOST:PORT")
	flags.StringVar(&task.Topic, "topic", "", "topic")
	flags.StringVar(&task.Spec, "spec", "", "records to produce")
	flags.StringVar(&task.Codec, "codec", "none", "none, gzip, snappy, lz4 or zstd")
	flags.StringVar(&task.Acks, "acks", "all", "0, 1 or all")
	idempotent := flags.String("idempotent", "false", "true or false")
	flags.StringVar(&task.Expect, "expect", "", "records that must be read")
	flags.StringVar(&task.From, "from", "beginning", "beginning or an offset")
	if err := flags.Parse(os.Args[2:]); err != nil {
		usage(err)
	}
	task.Partition = int32(*partition)
	task.Idempotent = *idempotent == "true"
	all := []job{task}
	if task.Action == "batch" {
		all = nil
		file, err := os.Open(*jobs)
		if err != nil {
			usage(err)
		}
		decoder := json.NewDecoder(file)
		for decoder.More() {
			var next job
			if err := decoder.Decode(&next); err != nil {
				usage(err)
			}
			all = append(all, next)
		}
	}
	good := true
	for _, next := range all {
		good = run(next) && good
	}
	if !good {
		os.Exit(1)
	}
}
