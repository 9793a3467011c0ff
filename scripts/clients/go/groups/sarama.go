package main

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
)

// saramaMember reads the claims of a session; a claim's begin and end are its assignment and revocation.
type saramaMember struct{}

func (saramaMember) Setup(sarama.ConsumerGroupSession) error { return nil }

func (saramaMember) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	emitPartitions("assigned", []int32{claim.Partition()})
	defer emitPartitions("revoked", []int32{claim.Partition()})
	for message := range claim.Messages() {
		emitRead(message.Partition, message.Offset, message.Value)
		session.MarkMessage(message, "")
		session.Commit()
	}
	return nil
}

// runSarama is sarama as a member; returns once the context ends.
func runSarama(ctx context.Context, task options) error {
	config := sarama.NewConfig()
	config.Version = sarama.V4_0_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Return.Errors = true
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = task.session
	config.Consumer.Group.Heartbeat.Interval = task.session / 6
	config.Consumer.Group.InstanceId = task.instance
	config.Metadata.Retry.Max = 60
	strategy := sarama.NewBalanceStrategyRange()
	if task.protocol == "cooperative-sticky" {
		strategy = sarama.NewBalanceStrategyCooperativeSticky()
	}
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	group, err := sarama.NewConsumerGroup([]string{task.bootstrap}, task.group, config)
	if err != nil {
		return err
	}
	go func() {
		for err := range group.Errors() {
			trouble("group", err)
		}
	}()
	for ctx.Err() == nil {
		err := group.Consume(ctx, []string{task.topic}, saramaMember{})
		if errors.Is(err, sarama.ErrFencedInstancedId) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			trouble("consume", err)
			time.Sleep(100 * time.Millisecond)
		}
	}
	return group.Close()
}
