package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	franzCodecs = map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(),
		"zstd": kgo.ZstdCompression(),
	}
	franzAcks = map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}
)

func produceFranz(task job, records []record) error {
	codec, known := franzCodecs[task.Codec]
	acks, knownAcks := franzAcks[task.Acks]
	if !known || !knownAcks {
		return fmt.Errorf("unknown codec %q or acks %q", task.Codec, task.Acks)
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(task.Bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codec),
		kgo.ProducerBatchMaxBytes(batchMaxBytes),
		kgo.ProducerLinger(linger),
		kgo.RequiredAcks(acks),
		// No RecordDeliveryTimeout: it counts from the record's own timestamp, which lies in the past here.
	}
	if !task.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	var failure error
	offsets := make([]int64, 0, len(records))
	ctx, cancel := context.WithTimeout(context.Background(), produceDeadline)
	defer cancel()
	for _, item := range records {
		message := &kgo.Record{Topic: task.Topic, Partition: task.Partition, Key: item.key, Value: item.value}
		for _, pair := range item.headers {
			message.Headers = append(message.Headers, kgo.RecordHeader{Key: pair.name, Value: pair.value})
		}
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
		return err
	}
	if failure != nil || task.Acks == "0" {
		return failure
	}
	return oneRun(offsets)
}

func fromFranz(got *kgo.Record) record {
	timestamp := got.Timestamp.UnixMilli()
	item := record{key: got.Key, value: got.Value, timestamp: &timestamp, offset: got.Offset}
	for _, pair := range got.Headers {
		item.headers = append(item.headers, header{pair.Key, pair.Value})
	}
	return item
}

func consumeFranz(task job, reads *comparison) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(task.Bootstrap),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{task.Topic: {task.Partition: kgo.NewOffset().At(reads.first)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(fetchWait),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), consumeDeadline)
	defer cancel()
	for !reads.done() {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return reads.missing()
		}
		var failures []error
		fetches.EachError(func(topic string, partition int32, err error) {
			failures = append(failures, fmt.Errorf("%s-%d: %w", topic, partition, err))
		})
		if len(failures) > 0 {
			return errors.Join(failures...)
		}
		for _, got := range fetches.Records() {
			if err := reads.next(fromFranz(got)); err != nil {
				return err
			}
		}
	}
	admin := kadm.NewClient(client)
	var ends [2]int64
	for at, list := range []func(context.Context, ...string) (kadm.ListedOffsets, error){admin.ListStartOffsets, admin.ListEndOffsets} {
		offsets, err := list(ctx, task.Topic)
		if err != nil {
			return err
		}
		listed, found := offsets.Lookup(task.Topic, task.Partition)
		if !found || listed.Err != nil {
			return fmt.Errorf("offset of %s-%d: %v", task.Topic, task.Partition, listed.Err)
		}
		ends[at] = listed.Offset
	}
	return reads.sameEnds(ends[0], ends[1])
}
