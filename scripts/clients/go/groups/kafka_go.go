package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// runKafkaGo is kafka-go's Reader as a member; it does not tell its assignment. Returns once the context ends.
func runKafkaGo(ctx context.Context, task options) error {
	if task.protocol != "range" || task.instance != "" {
		return errors.New("kafka-go has the range protocol and no static members")
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:           []string{task.bootstrap},
		GroupID:           task.group,
		GroupTopics:       []string{task.topic},
		GroupBalancers:    []kafka.GroupBalancer{kafka.RangeGroupBalancer{}},
		StartOffset:       kafka.FirstOffset,
		SessionTimeout:    task.session,
		HeartbeatInterval: task.session / 6,
		JoinGroupBackoff:  100 * time.Millisecond,
		MaxWait:           100 * time.Millisecond,
		ErrorLogger: kafka.LoggerFunc(func(form string, values ...any) {
			emit("trouble", map[string]any{"detail": fmt.Sprintf(form, values...)})
		}),
	})
	for ctx.Err() == nil {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			if ctx.Err() == nil {
				trouble("fetch", err)
			}
			continue
		}
		emitRead(int32(message.Partition), message.Offset, message.Value)
		if err := reader.CommitMessages(ctx, message); err != nil && ctx.Err() == nil {
			trouble("commit", err)
		}
	}
	return reader.Close()
}
