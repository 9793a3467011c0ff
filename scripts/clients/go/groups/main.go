// The Go clients as members of a group: franz-go, sarama and kafka-go, by the first argument. The rest of the command line: see
// ../../member.py.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

type options struct {
	bootstrap, topic, group, protocol, instance string
	session                                     time.Duration
}

var output sync.Mutex

func emit(event string, fields map[string]any) {
	line := map[string]any{"event": event}
	for name, value := range fields {
		line[name] = value
	}
	text, _ := json.Marshal(line)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

func emitPartitions(event string, partitions []int32) {
	if partitions == nil {
		partitions = []int32{}
	}
	emit(event, map[string]any{"partitions": partitions})
}

func emitRead(partition int32, offset int64, value []byte) {
	emit("read", map[string]any{"partition": partition, "offset": offset, "value": string(value)})
}

func trouble(what string, err error) {
	emit("trouble", map[string]any{"detail": fmt.Sprintf("%s: %v", what, err)})
}

func version(path string) string {
	if info, found := debug.ReadBuildInfo(); found {
		for _, dependency := range info.Deps {
			if dependency.Path == path {
				return dependency.Version
			}
		}
	}
	return "unknown"
}

func main() {
	members := map[string]struct {
		path string
		run  func(context.Context, options) error
	}{
		"franz-go": {"github.com/twmb/franz-go", runFranz},
		"sarama":   {"github.com/IBM/sarama", runSarama},
		"kafka-go": {"github.com/segmentio/kafka-go", runKafkaGo},
	}
	name := strings.Join(os.Args[1:min(2, len(os.Args))], "")
	member, found := members[name]
	if !found {
		fmt.Fprintln(os.Stderr, "usage: group-members franz-go|sarama|kafka-go OPTIONS (see member.py)")
		os.Exit(2)
	}
	var task options
	flags := flag.NewFlagSet(name, flag.ExitOnError)
	flags.StringVar(&task.bootstrap, "bootstrap", "", "HOST:PORT")
	flags.StringVar(&task.topic, "topic", "", "topic")
	flags.StringVar(&task.group, "group", "", "group")
	flags.StringVar(&task.protocol, "protocol", "range", "range, cooperative-sticky or consumer")
	flags.StringVar(&task.instance, "instance", "", "static member")
	session := flags.Int("session-ms", 6000, "session timeout")
	_ = flags.Parse(os.Args[2:])
	task.session = time.Duration(*session) * time.Millisecond
	emit("client", map[string]any{"name": name + " " + version(member.path)})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := member.run(ctx, task); err != nil {
		trouble("end", err)
		os.Exit(1)
	}
}
