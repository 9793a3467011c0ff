// The Go clients of the matrix: franz-go, sarama and kafka-go, by the first argument. The rest of the command line: see ../common.py.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"
)

const (
	consumeDeadline = 15 * time.Second
	produceDeadline = 40 * time.Second
	batchMaxBytes   = 1 << 20
	linger          = 20 * time.Millisecond
	fetchWait       = 50 * time.Millisecond
	// With acks=0 nothing says that the bytes have left; a connection closed at once may lose them.
	settle = 300 * time.Millisecond
)

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

// client writes all records in order, and reads them back, from the first offset of the comparison on, until all were seen.
type client struct {
	path    string
	produce func(job, []record) error
	consume func(job, *comparison) error
}

var clients = map[string]client{
	"franz-go": {"github.com/twmb/franz-go", produceFranz, consumeFranz},
	"sarama":   {"github.com/IBM/sarama", produceSarama, consumeSarama},
	"kafka-go": {"github.com/segmentio/kafka-go", produceKafkaGo, consumeKafkaGo},
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

func produce(by client, task job) (string, error) {
	records, err := loadSpecification(task.Spec)
	if err != nil {
		return "", err
	}
	if err := by.produce(task, records); err != nil {
		return "", err
	}
	if task.Acks == "0" {
		time.Sleep(settle)
	}
	return fmt.Sprintf("%d records", len(records)), nil
}

func consume(by client, task job) (string, error) {
	expected, err := loadSpecification(task.Expect)
	if err != nil {
		return "", err
	}
	reads := comparison{expected: expected}
	if task.From != "" && task.From != "beginning" {
		if reads.first, err = strconv.ParseInt(task.From, 10, 64); err != nil {
			return "", err
		}
	}
	if err := by.consume(task, &reads); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d records", len(expected)), nil
}

func run(name string, by client, task job) bool {
	begin := time.Now()
	var detail string
	var err error
	switch task.Action {
	case "produce":
		detail, err = produce(by, task)
	case "consume":
		detail, err = consume(by, task)
	default:
		err = fmt.Errorf("unknown action %q", task.Action)
	}
	if err != nil {
		detail = err.Error()
	}
	text, _ := json.Marshal(result{task.ID, err == nil, detail, time.Since(begin).Seconds(), name + " " + version(by.path)})
	fmt.Println(string(text))
	return err == nil
}

func usage(err error) {
	fmt.Fprintln(os.Stderr, "usage: go-clients franz-go|sarama|kafka-go produce|consume|batch OPTIONS (see common.py)", err)
	os.Exit(2)
}

func readJobs(path string) []job {
	file, err := os.Open(path)
	if err != nil {
		usage(err)
	}
	defer file.Close()
	var all []job
	decoder := json.NewDecoder(file)
	for decoder.More() {
		var next job
		if err := decoder.Decode(&next); err != nil {
			usage(err)
		}
		all = append(all, next)
	}
	return all
}

func main() {
	if len(os.Args) < 3 {
		usage(nil)
	}
	name := os.Args[1]
	by, found := clients[name]
	if !found {
		usage(fmt.Errorf("no client %q", name))
	}
	task := job{Action: os.Args[2]}
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
	if err := flags.Parse(os.Args[3:]); err != nil {
		usage(err)
	}
	task.Partition = int32(*partition)
	task.Idempotent = *idempotent == "true"
	all := []job{task}
	if task.Action == "batch" {
		all = readJobs(*jobs)
	}
	good := true
	for _, next := range all {
		good = run(name, by, next) && good
	}
	if !good {
		os.Exit(1)
	}
}
