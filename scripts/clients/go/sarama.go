package main

import (
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

var (
	saramaCodecs = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4,
		"zstd": sarama.CompressionZSTD,
	}
	saramaAcks = map[string]sarama.RequiredAcks{"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll}
)

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_0_0_0
	return config
}

// bytesOrNull is an encoder that is nil for null: a ByteEncoder of nil would be sent as empty.
func bytesOrNull(data []byte) sarama.Encoder {
	if data == nil {
		return nil
	}
	return sarama.ByteEncoder(data)
}

func produceSarama(task job, records []record) error {
	codec, known := saramaCodecs[task.Codec]
	acks, knownAcks := saramaAcks[task.Acks]
	if !known || !knownAcks {
		return fmt.Errorf("unknown codec %q or acks %q", task.Codec, task.Acks)
	}
	config := saramaConfig()
	config.Producer.RequiredAcks = acks
	config.Producer.Compression = codec
	config.Producer.Idempotent = task.Idempotent
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.MaxMessageBytes = batchMaxBytes
	config.Producer.Flush.Frequency = linger
	config.Producer.Return.Successes = true
	// One request at a time keeps order without idempotence, and sarama allows no more with it.
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer([]string{task.Bootstrap}, config)
	if err != nil {
		return err
	}
	messages := make([]*sarama.ProducerMessage, 0, len(records))
	for _, item := range records {
		message := &sarama.ProducerMessage{Topic: task.Topic, Partition: task.Partition, Key: bytesOrNull(item.key), Value: bytesOrNull(item.value)}
		for _, pair := range item.headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(pair.name), Value: pair.value})
		}
		if item.timestamp != nil {
			message.Timestamp = time.UnixMilli(*item.timestamp)
		}
		messages = append(messages, message)
	}
	if err := producer.SendMessages(messages); err != nil {
		_ = producer.Close()
		return err
	}
	if err := producer.Close(); err != nil || task.Acks == "0" {
		return err
	}
	offsets := make([]int64, 0, len(messages))
	for _, message := range messages {
		offsets = append(offsets, message.Offset)
	}
	return oneRun(offsets)
}

func fromSarama(got *sarama.ConsumerMessage) record {
	timestamp := got.Timestamp.UnixMilli()
	item := record{key: got.Key, value: got.Value, timestamp: &timestamp, offset: got.Offset}
	for _, pair := range got.Headers {
		item.headers = append(item.headers, header{string(pair.Key), pair.Value})
	}
	return item
}

func consumeSarama(task job, reads *comparison) error {
	config := saramaConfig()
	config.Consumer.MaxWaitTime = fetchWait
	config.Consumer.Return.Errors = true
	client, err := sarama.NewClient([]string{task.Bootstrap}, config)
	if err != nil {
		return err
	}
	defer client.Close()
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(task.Topic, task.Partition, reads.first)
	if err != nil {
		return err
	}
	defer partition.AsyncClose()
	deadline := time.After(consumeDeadline)
	for !reads.done() {
		select {
		case got := <-partition.Messages():
			if err := reads.next(fromSarama(got)); err != nil {
				return err
			}
		case failure := <-partition.Errors():
			return failure
		case <-deadline:
			return reads.missing()
		}
	}
	start, err := client.GetOffset(task.Topic, task.Partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	end, err := client.GetOffset(task.Topic, task.Partition, sarama.OffsetNewest)
	if err != nil {
		return err
	}
	return reads.sameEnds(start, end)
}
