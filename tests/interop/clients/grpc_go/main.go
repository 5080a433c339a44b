// Command line around Go's github.com/apache/rocketmq-clients/golang/v5, RocketMQ 5's gRPC client.
//
//	grpc_go_client produce --namesrv PROXY --topic T --count N [...]
//	grpc_go_client consume --namesrv PROXY --topic T --group G --count N --timeout S [...]
//
// PROXY is the endpoint of a proxy, host:port. One JSON object per line on stdout; exactly one has "summary": true.
// Exit status: 0 all done, 1 short or failed, 2 bad usage. The options are those of GrpcJavaClient.java. The
// library's own log lies in the folder for temporary files. Clients are not stopped in order, which takes half a minute:
// what a push consumer has yet to acknowledge comes again.
package main

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	batch     = 16
	await     = 5 * time.Second
	invisible = 30 * time.Second
	patience  = 20 * time.Second // a request to a JVM that has just started on a busy machine takes more than its 3 s
)

type row map[string]any

type options struct {
	namesrv, topic, group, credentials, tags, expression, sql string
	count, intervalMs, messageGroups, reconsumeFirst          int
	timeout, linger, delayS                                   float64
	plain, keepGoing, transaction, simple                     bool
}

func read(args []string) (string, *options) {
	o := &options{}
	if len(args) == 0 || args[0] != "produce" && args[0] != "consume" {
		usage("first argument: produce or consume")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError) // which leaves with status 2
	flags.StringVar(&o.namesrv, "namesrv", "", "host:port of a proxy")
	flags.StringVar(&o.topic, "topic", "", "")
	flags.IntVar(&o.count, "count", 0, "")
	flags.StringVar(&o.group, "group", "", "")
	flags.StringVar(&o.credentials, "credentials", "", "a file with lines accessKey: and secretKey:")
	flags.BoolVar(&o.plain, "plain", false, "no TLS")
	flags.Float64Var(&o.timeout, "timeout", 120, "seconds")
	flags.Float64Var(&o.linger, "linger", 0, "seconds")
	if args[0] == "produce" {
		flags.IntVar(&o.intervalMs, "interval-ms", 0, "")
		flags.BoolVar(&o.keepGoing, "keep-going", false, "")
		flags.IntVar(&o.messageGroups, "message-groups", 0, "")
		flags.Float64Var(&o.delayS, "delay-s", 0, "")
		flags.StringVar(&o.tags, "tags", "", "joined with commas")
		flags.BoolVar(&o.transaction, "transaction", false, "")
	} else {
		flags.StringVar(&o.expression, "expression", "*", "")
		flags.StringVar(&o.sql, "sql", "", "")
		flags.IntVar(&o.reconsumeFirst, "reconsume-first", 0, "")
		flags.BoolVar(&o.simple, "simple", false, "")
	}
	flags.Parse(args[1:])
	if o.namesrv == "" || o.topic == "" || o.count == 0 || args[0] == "consume" && o.group == "" {
		usage("--namesrv, --topic and --count are required, and --group to consume")
	}
	return args[0], o
}

func usage(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(2)
}

var printing sync.Mutex

func emit(fields row) {
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func digest(body []byte) string {
	sum := sha1.Sum(body)
	return hex.EncodeToString(sum[:])
}

func (o *options) config() *rmq.Config {
	keys := &credentials.SessionCredentials{}
	if o.credentials != "" {
		content, err := os.ReadFile(o.credentials)
		if err != nil {
			usage(err.Error())
		}
		for _, line := range strings.Split(string(content), "\n") {
			name, value, _ := strings.Cut(line, ":")
			switch strings.TrimSpace(name) {
			case "accessKey":
				keys.AccessKey = strings.TrimSpace(value)
			case "secretKey":
				keys.AccessSecret = strings.TrimSpace(value)
			}
		}
	}
	return &rmq.Config{Endpoint: o.namesrv, ConsumerGroup: o.group, Credentials: keys}
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}

func (o *options) message(number int) *rmq.Message {
	message := &rmq.Message{Topic: o.topic, Body: []byte("grpc-" + strconv.Itoa(number))}
	message.SetKeys("k" + strconv.Itoa(number))
	message.AddProperty("number", strconv.Itoa(number))
	if o.tags != "" {
		tags := strings.Split(o.tags, ",")
		message.SetTag(tags[number%len(tags)])
	}
	if o.messageGroups > 0 {
		message.SetMessageGroup("g" + strconv.Itoa(number%o.messageGroups))
	}
	if o.delayS > 0 {
		message.SetDelayTimestamp(time.Now().Add(seconds(o.delayS)))
	}
	return message
}

func produce(o *options) error {
	made := []rmq.ProducerOption{rmq.WithTopics(o.topic)}
	if o.transaction {
		made = append(made, rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(message *rmq.MessageView) rmq.TransactionResolution {
				emit(row{"event": "checked", "body_sha1": digest(message.GetBody())})
				return rmq.COMMIT
			},
		}))
	}
	producer, err := rmq.NewProducer(o.config(), made...)
	if err != nil {
		return err
	}
	producer.SetRequestTimeout(patience)
	if err = producer.Start(); err != nil {
		return err
	}
	failed := 0
	for number := 0; number < o.count; number++ {
		line := send(o, producer, number)
		emit(line)
		if line["status"] == "ERROR" {
			failed++
			if !o.keepGoing {
				break
			}
		}
		time.Sleep(time.Duration(o.intervalMs) * time.Millisecond)
	}
	emit(row{"summary": true, "failed": failed})
	if o.transaction {
		time.Sleep(seconds(o.linger))
	}
	if failed > 0 {
		return fmt.Errorf("%d sends failed", failed)
	}
	return nil
}

// One message is committed, the next rolled back, the third is asked about.
func send(o *options, producer rmq.Producer, number int) row {
	message := o.message(number)
	line := row{"i": number, "body_sha1": digest(message.Body), "status": "SEND_OK"}
	var receipts []*rmq.SendReceipt
	var err error
	if o.transaction {
		transaction := producer.BeginTransaction()
		receipts, err = producer.SendWithTransaction(context.Background(), message, transaction)
		if err == nil {
			line["end"] = []string{"commit", "rollback", "open"}[number%3]
			switch number % 3 {
			case 0:
				err = transaction.Commit()
			case 1:
				err = transaction.RollBack()
			}
		}
	} else {
		receipts, err = producer.Send(context.Background(), message)
	}
	if err != nil {
		line["status"], line["error"] = "ERROR", err.Error()
	} else {
		line["msg_id"] = receipts[0].MessageID
	}
	return line
}

// What has been consumed; push consumers call it from several goroutines.
type listener struct {
	sync.Mutex
	later, wanted, seen int
}

func (l *listener) take(message *rmq.MessageView) bool {
	l.Lock()
	defer l.Unlock()
	l.seen++
	isLater := l.seen <= l.later
	line := row{
		"body_sha1": digest(message.GetBody()), "body": string(message.GetBody()), "msg_id": message.GetMessageId(),
		"keys": message.GetKeys(), "group": message.GetMessageGroup(), "tag": message.GetTag(),
		"properties": message.GetProperties(), "reconsume_times": message.GetDeliveryAttempt() - 1, "action": "ok",
	}
	if due := message.GetDeliveryTimestamp(); due != nil {
		line["early_ms"] = time.Until(*due).Milliseconds()
	}
	if isLater {
		line["action"] = "later"
	}
	emit(line)
	return !isLater
}

func (l *listener) isDone() bool {
	l.Lock()
	defer l.Unlock()
	return l.seen-l.later >= l.wanted
}

func consume(o *options) error {
	taken := &listener{later: o.reconsumeFirst, wanted: o.count}
	filter := rmq.NewFilterExpression(o.expression)
	if o.sql != "" {
		filter = rmq.NewFilterExpressionWithType(o.sql, rmq.SQL92)
	}
	subscriptions := map[string]*rmq.FilterExpression{o.topic: filter}
	deadline := time.Now().Add(seconds(o.timeout))
	var err error
	if o.simple {
		err = receive(o, taken, subscriptions, deadline)
	} else {
		err = listen(o, taken, subscriptions, deadline)
	}
	if err != nil {
		return err
	}
	emit(row{"summary": true, "accepted": taken.seen - taken.later})
	if !taken.isDone() {
		return fmt.Errorf("short")
	}
	return nil
}

func receive(o *options, taken *listener, subscriptions map[string]*rmq.FilterExpression, deadline time.Time) error {
	consumer, err := rmq.NewSimpleConsumer(o.config(), rmq.WithSimpleAwaitDuration(await),
		rmq.WithSimpleSubscriptionExpressions(subscriptions))
	if err != nil {
		return err
	}
	consumer.SetRequestTimeout(patience)
	if err = consumer.Start(); err != nil {
		return err
	}
	emit(row{"event": "started"})
	for !taken.isDone() && time.Now().Before(deadline) {
		messages, err := consumer.Receive(context.Background(), batch, invisible)
		if err != nil { // also when there was none
			time.Sleep(10 * time.Millisecond)
			continue
		}
		for _, message := range messages {
			if taken.take(message) {
				err = consumer.Ack(context.Background(), message)
			} else {
				err = consumer.ChangeInvisibleDuration(message, time.Second)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func listen(o *options, taken *listener, subscriptions map[string]*rmq.FilterExpression, deadline time.Time) error {
	consumer, err := rmq.NewPushConsumer(o.config(), rmq.WithPushAwaitDuration(await),
		rmq.WithPushSubscriptionExpressions(subscriptions),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
			if taken.take(message) {
				return rmq.SUCCESS
			}
			return rmq.FAILURE
		}}))
	if err != nil {
		return err
	}
	consumer.SetRequestTimeout(patience)
	if err = consumer.Start(); err != nil {
		return err
	}
	emit(row{"event": "started"})
	for !taken.isDone() && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(seconds(o.linger))
	return nil
}

func main() {
	operation, o := read(os.Args[1:])
	rmq.EnableSsl = !o.plain
	os.Setenv(rmq.CLIENT_LOG_ROOT, filepath.Join(os.TempDir(), "grpc_go_client"))
	os.Setenv(rmq.CLIENT_LOG_LEVEL, "error")
	rmq.ResetLogger()
	act := consume
	if operation == "produce" {
		act = produce
	}
	if err := act(o); err != nil {
		emit(row{"summary": true, "op": operation, "error": err.Error()})
		os.Exit(1)
	}
}
