// Command line around Go's github.com/apache/rocketmq-client-go/v2.
//
//	go_client produce --namesrv H:P --topic T --count N [...]
//	go_client consume --namesrv H:P --topic T --group G --count N --timeout S [...]
//
// One JSON object per line on stdout; exactly one has "summary": true (an "event" line may follow it).
// Exit status: 0 all done, 1 short or failed, 2 bad usage, 3 the hard deadline fired.
// The options are those of JavaClient.java without `consume --steered` and --log-dir, and:
//
//	consume --pull   the library's PullConsumer, with Poll and ACK
//
// of the ways to request the library has two, and a reply may take whole seconds only.
//
// The library waits 3 s for a send whatever --send-timeout-ms says, and logs to stderr.
package main

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	client = "go rocketmq-client-go-2.1.2"
	grace  = 20 * time.Second
)

type row map[string]any

type options struct {
	namesrv, topic, group, tag, keyPrefix, bodyPrefix, expression string
	count, bodySize, delayLevel, batch, shards                    int
	sendTimeoutMs, intervalMs, reconsumeFirst                     int
	timeout, linger                                               float64
	orderly, oneway, async, transaction, keepGoing, pull, steered bool
	request, reply                                                bool
}

func read(args []string) (string, *options) {
	o := &options{}
	if len(args) == 0 || args[0] != "produce" && args[0] != "consume" {
		usage("first argument: produce or consume")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError) // which leaves with status 2
	flags.StringVar(&o.namesrv, "namesrv", "", "host:port, several joined with ;")
	flags.StringVar(&o.topic, "topic", "", "")
	flags.IntVar(&o.count, "count", 0, "")
	flags.StringVar(&o.group, "group", "interop_go_producer", "")
	flags.Float64Var(&o.timeout, "timeout", 120, "seconds")
	if args[0] == "produce" {
		flags.StringVar(&o.tag, "tag", "", "")
		flags.StringVar(&o.keyPrefix, "key-prefix", "", "")
		flags.StringVar(&o.bodyPrefix, "body-prefix", "go", "")
		flags.IntVar(&o.bodySize, "body-size", 0, "")
		flags.IntVar(&o.delayLevel, "delay-level", 0, "")
		flags.IntVar(&o.batch, "batch", 0, "send in batches of so many")
		flags.IntVar(&o.shards, "shards", 1, "with --orderly: number of sharding keys")
		flags.IntVar(&o.sendTimeoutMs, "send-timeout-ms", 3000, "")
		flags.IntVar(&o.intervalMs, "interval-ms", 0, "pause between sends")
		flags.BoolVar(&o.orderly, "orderly", false, "the library's hash selector over sharding keys")
		flags.BoolVar(&o.oneway, "oneway", false, "")
		flags.BoolVar(&o.steered, "steered", false, "stay until the end of stdin")
		flags.BoolVar(&o.async, "async", false, "")
		flags.BoolVar(&o.request, "request", false, "wait for the reply to each message")
		flags.BoolVar(&o.transaction, "transaction", false, "commit, roll back, leave to the check, in turn")
		flags.BoolVar(&o.keepGoing, "keep-going", false, "go on after a failed send")
	} else {
		flags.StringVar(&o.expression, "expression", "*", "")
		flags.IntVar(&o.reconsumeFirst, "reconsume-first", 0, "refuse so many deliveries")
		flags.Float64Var(&o.linger, "linger", 0, "seconds to go on listening after --count")
		flags.BoolVar(&o.orderly, "orderly", false, "")
		flags.BoolVar(&o.pull, "pull", false, "")
		flags.BoolVar(&o.reply, "reply", false, "answer each message with re: and its body")
	}
	flags.Parse(args[1:])
	if o.namesrv == "" || o.topic == "" || o.count <= 0 || flags.NArg() > 0 {
		usage("--namesrv, --topic and --count are required, and nothing but options may follow")
	}
	return args[0], o
}

func usage(why string) {
	fmt.Fprintln(os.Stderr, why+"\nusage: go_client produce|consume --namesrv H:P --topic T --count N [...]")
	os.Exit(2)
}

func main() {
	operation, o := read(os.Args[1:])
	rlog.SetLogLevel("error") // a level below writes the whole route with each change
	hard := seconds(o.timeout+o.linger) + grace
	time.AfterFunc(hard, func() {
		emit(row{"event": "hard_deadline", "seconds": hard.Seconds()})
		os.Exit(3)
	})
	work := produce
	if operation == "consume" {
		work = consume
	}
	isDone, stop, err := work(o)
	if err != nil {
		emit(row{"summary": true, "client": client, "op": operation, "error": text(err)})
	}
	if stop != nil {
		leave(stop)
	}
	if !isDone {
		os.Exit(1)
	}
}

// Stop the library, but for no longer than the grace that the hard deadline leaves.
func leave(stop func() error) {
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	select {
	case err := <-stopped:
		if err != nil {
			emit(row{"event": "shutdown_error", "error": text(err)})
		}
	case <-time.After(grace - 5*time.Second):
		emit(row{"event": "shutdown_hangs"})
	}
}

var out sync.Mutex

func emit(line row) {
	line["at"] = time.Now().UnixMilli()
	data, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(data, '\n'))
}

// Text that deflates to about half: '<prefix>-<i>.' and then hex digits that depend on i.
func (o *options) body(number int) []byte {
	head := fmt.Sprintf("%s-%d", o.bodyPrefix, number)
	if o.bodySize <= len(head) {
		return []byte(head)
	}
	made := strings.Builder{}
	made.WriteString(head + ".")
	for n := 0; made.Len() < o.bodySize; n++ {
		digest := sha256.Sum256([]byte(fmt.Sprintf("%s/%d", head, n)))
		made.WriteString(hex.EncodeToString(digest[:]))
	}
	return []byte(made.String()[:o.bodySize])
}

func digest(body []byte) string {
	sum := sha1.Sum(body)
	return hex.EncodeToString(sum[:])
}

func text(err error) string {
	said := err.Error()
	return said[:min(400, len(said))]
}

func seconds(count float64) time.Duration {
	return time.Duration(count * float64(time.Second))
}

func millis(count int) time.Duration {
	return time.Duration(count) * time.Millisecond
}
