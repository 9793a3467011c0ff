package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// runFranz is franz-go as a member; returns once the context ends.
func runFranz(ctx context.Context, task options) error {
	commit := func(client *kgo.Client) {
		bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := client.CommitUncommittedOffsets(bounded); err != nil {
			trouble("commit", err)
		}
	}
	settings := []kgo.Opt{
		kgo.SeedBrokers(task.bootstrap),
		kgo.ConsumerGroup(task.group),
		kgo.ConsumeTopics(task.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(task.session),
		kgo.HeartbeatInterval(task.session / 6),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			emitPartitions("assigned", partitions[task.topic])
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
			commit(client)
			emitPartitions("revoked", partitions[task.topic])
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			emitPartitions("revoked", partitions[task.topic])
		}),
	}
	switch task.protocol {
	case "cooperative-sticky":
		settings = append(settings, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	case "consumer":
		settings = append(settings, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	default:
		settings = append(settings, kgo.Balancers(kgo.RangeBalancer()))
	}
	if task.instance != "" {
		settings = append(settings, kgo.InstanceID(task.instance))
	}
	client, err := kgo.NewClient(settings...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		var fenced error
		fetches.EachError(func(_ string, _ int32, err error) {
			if ctx.Err() == nil {
				trouble("poll", err)
			}
			if errors.Is(err, kerr.FencedInstanceID) {
				fenced = err
			}
		})
		if fenced != nil {
			return fenced
		}
		fetches.EachRecord(func(record *kgo.Record) { emitRead(record.Partition, record.Offset, record.Value) })
		if !fetches.Empty() {
			commit(client)
		}
		client.AllowRebalance()
	}
	return nil
}
