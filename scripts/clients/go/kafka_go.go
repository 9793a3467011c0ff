package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

var (
	kafkaGoCodecs = map[string]kafka.Compression{"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}
	kafkaGoAcks   = map[string]kafka.RequiredAcks{"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll}
)

func produceKafkaGo(task job, records []record) error {
	codec, known := kafkaGoCodecs[task.Codec]
	acks, knownAcks := kafkaGoAcks[task.Acks]
	if !known || !knownAcks || task.Idempotent {
		return fmt.Errorf("unknown codec %q or acks %q, or idempotence, which kafka-go does not have", task.Codec, task.Acks)
	}
	writer := &kafka.Writer{
		Addr:         kafka.TCP(task.Bootstrap),
		Topic:        task.Topic,
		Balancer:     kafka.BalancerFunc(func(kafka.Message, ...int) int { return int(task.Partition) }),
		BatchTimeout: linger,
		BatchBytes:   batchMaxBytes,
		RequiredAcks: acks,
		Compression:  codec,
	}
	ctx, cancel := context.WithTimeout(context.Background(), produceDeadline)
	defer cancel()
	messages := make([]kafka.Message, 0, len(records))
	for _, item := range records {
		message := kafka.Message{Key: item.key, Value: item.value}
		for _, pair := range item.headers {
			message.Headers = append(message.Headers, kafka.Header{Key: pair.name, Value: pair.value})
		}
		if item.timestamp != nil {
			message.Time = time.UnixMilli(*item.timestamp)
		}
		messages = append(messages, message)
	}
	return errors.Join(writer.WriteMessages(ctx, messages...), writer.Close())
}

func fromKafkaGo(got kafka.Message) record {
	timestamp := got.Time.UnixMilli()
	item := record{key: got.Key, value: got.Value, timestamp: &timestamp, offset: got.Offset}
	for _, pair := range got.Headers {
		item.headers = append(item.headers, header{pair.Key, pair.Value})
	}
	return item
}

// consumeKafkaGo cannot tell empty from null: the reader gives nil for both.
func consumeKafkaGo(task job, reads *comparison) error {
	ctx, cancel := context.WithTimeout(context.Background(), consumeDeadline)
	defer cancel()
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{task.Bootstrap}, Topic: task.Topic, Partition: int(task.Partition), MaxWait: fetchWait, MaxBytes: 8 << 20,
	})
	defer reader.Close()
	if err := reader.SetOffset(reads.first); err != nil {
		return err
	}
	reads.emptyIsNull = true
	for !reads.done() {
		got, err := reader.FetchMessage(ctx)
		if ctx.Err() != nil {
			return reads.missing()
		}
		if err != nil {
			return err
		}
		if err := reads.next(fromKafkaGo(got)); err != nil {
			return err
		}
	}
	leader, err := kafka.DialLeader(ctx, "tcp", task.Bootstrap, task.Topic, int(task.Partition))
	if err != nil {
		return err
	}
	defer leader.Close()
	start, end, err := leader.ReadOffsets()
	if err != nil {
		return err
	}
	return reads.sameEnds(start, end)
}
