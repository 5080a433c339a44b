package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var background = context.Background()

// What the producer and the transaction producer have in common.
type service interface {
	Start() error
	Shutdown() error
}

type sending struct {
	*options
	plain                 rocketmq.Producer
	transactional         rocketmq.TransactionProducer
	listener              *inTurn
	ok, notOkStatus, fail atomic.Int64
	waiting               sync.WaitGroup
}

func produce(o *options) (bool, func() error, error) {
	s := &sending{options: o, listener: &inTurn{}}
	running, err := s.start()
	if err != nil {
		return false, nil, err
	}
	began := time.Now()
	for first := 0; first < o.count; first += max(1, o.batch) {
		isGood := s.send(first, min(o.count, first+max(1, o.batch)))
		if !isGood && !o.keepGoing {
			break
		}
		time.Sleep(millis(o.intervalMs))
	}
	s.waiting.Wait()
	if o.oneway {
		time.Sleep(500 * time.Millisecond) // nothing to wait for: let the bytes leave before the socket is closed
	}
	for s.listener.unchecked.Load() > 0 {
		time.Sleep(20 * time.Millisecond) // the hard deadline bounds it
	}
	emit(row{"summary": true, "client": client, "op": "produce", "topic": o.topic, "asked": o.count,
		"elapsed_ms": time.Since(began).Milliseconds(), "ok": s.ok.Load(), "not_ok_status": s.notOkStatus.Load(),
		"failed": s.fail.Load()})
	if o.steered {
		// What follows a check is sent behind our back: who steers us knows when it is there.
		io.Copy(io.Discard, os.Stdin)
	}
	return s.ok.Load() == int64(o.count), running.Shutdown, nil
}

func (s *sending) start() (service, error) {
	settings := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver(strings.Split(s.namesrv, ";"))),
		producer.WithGroupName(s.group),
		producer.WithSendMsgTimeout(millis(s.sendTimeoutMs)),
	}
	if s.orderly {
		settings = append(settings, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	var made service
	var err error
	if s.transaction {
		s.transactional, err = rocketmq.NewTransactionProducer(s.listener, settings...)
		made = s.transactional
	} else {
		s.plain, err = rocketmq.NewProducer(settings...)
		made = s.plain
	}
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

// Send the messages from first until before end, which are more than one only with --batch.
func (s *sending) send(first, end int) bool {
	numbers, messages := []int{}, []*primitive.Message{}
	for number := first; number < end; number++ {
		numbers = append(numbers, number)
		messages = append(messages, s.message(number))
	}
	began := time.Now()
	report := func(result *primitive.SendResult, err error) {
		for k, number := range numbers {
			s.report(number, messages[k], began, result, err)
		}
	}
	switch {
	case s.request:
		return s.requestOne(first, messages[0], began)
	case s.oneway:
		err := s.plain.SendOneWay(background, messages...)
		report(nil, err)
		return err == nil
	case s.async:
		return s.sendAsync(messages, report)
	case s.transaction:
		result, err := s.transactional.SendMessageInTransaction(background, messages[0])
		if err != nil {
			report(nil, err)
			return false
		}
		report(result.SendResult, nil)
		return true
	default:
		result, err := s.plain.SendSync(background, messages...)
		report(result, err)
		return err == nil
	}
}

// Ask, and wait for the reply, by the two ways of the library in turn.
func (s *sending) requestOne(number int, message *primitive.Message, began time.Time) bool {
	ttl := max(time.Second, millis(s.sendTimeoutMs))
	type end struct {
		reply *primitive.Message
		err   error
	}
	ended := make(chan end, 2)
	if number%2 == 0 {
		reply, err := s.plain.Request(background, ttl, message)
		ended <- end{reply, err}
	} else {
		done := func(_ context.Context, reply *primitive.Message, err error) { ended <- end{reply, err} }
		if err := s.plain.RequestAsync(background, ttl, done, message); err != nil {
			ended <- end{nil, err}
		}
	}
	found := <-ended // the library calls back at the end of the time, too
	line := row{"i": number, "body_sha1": digest(s.body(number)), "ms": time.Since(began).Milliseconds(), "status": "SEND_OK"}
	if found.err != nil {
		s.fail.Add(1)
		line["status"], line["error"] = "ERROR", text(found.err)
	} else {
		s.ok.Add(1)
		line["reply"] = string(found.reply.Body)
	}
	emit(line)
	return found.err == nil
}

// The library calls back twice when a send fails: with its error, and with one about the answer that is missing.
func (s *sending) sendAsync(messages []*primitive.Message, report func(*primitive.SendResult, error)) bool {
	s.waiting.Add(1)
	var once sync.Once
	done := func(_ context.Context, result *primitive.SendResult, err error) {
		once.Do(func() {
			report(result, err)
			s.waiting.Done()
		})
	}
	err := s.plain.SendAsync(background, done, messages...)
	if err != nil {
		done(background, nil, err)
	}
	return err == nil
}

func (s *sending) message(number int) *primitive.Message {
	made := primitive.NewMessage(s.topic, s.body(number))
	if s.tag != "" {
		made.WithTag(s.tag)
	}
	if s.keyPrefix != "" {
		made.WithKeys([]string{fmt.Sprintf("%s%d", s.keyPrefix, number)})
	}
	if s.delayLevel > 0 {
		made.WithDelayTimeLevel(s.delayLevel)
	}
	if s.orderly {
		made.WithShardingKey(fmt.Sprintf("shard-%d", number%max(1, s.shards)))
	}
	if s.transaction {
		made.WithProperty(turnProperty, fmt.Sprint(number))
	}
	return made
}

func (s *sending) report(
	number int, message *primitive.Message, began time.Time, result *primitive.SendResult, err error,
) {
	line := row{"i": number, "key": strings.TrimSpace(message.GetKeys()), "body_sha1": digest(s.body(number)),
		"ms": time.Since(began).Milliseconds()}
	if s.transaction {
		line["transaction"] = turns[number%len(turns)].name
	}
	switch {
	case err != nil:
		s.fail.Add(1)
		line["status"], line["error"] = "ERROR", text(err)
	case result == nil:
		s.ok.Add(1)
		line["status"] = "ONEWAY"
	default:
		if result.Status == primitive.SendOK {
			s.ok.Add(1)
			line["status"] = "SEND_OK"
		} else {
			s.notOkStatus.Add(1)
			line["status"] = fmt.Sprintf("STATUS_%d", result.Status)
		}
		line["msg_id"], line["offset_msg_id"] = result.MsgID, result.OffsetMsgID
		line["queue_id"], line["queue_offset"] = result.MessageQueue.QueueId, result.QueueOffset
		line["broker"] = result.MessageQueue.BrokerName
	}
	emit(line)
}

const turnProperty = "turn"

// What becomes of halves, in turn; those that are left to the check are committed by it. The names are Java's.
var turns = []struct {
	name  string
	state primitive.LocalTransactionState
}{
	{"COMMIT_MESSAGE", primitive.CommitMessageState},
	{"ROLLBACK_MESSAGE", primitive.RollbackMessageState},
	{"UNKNOW", primitive.UnknowState},
}

type inTurn struct {
	checked   sync.Map
	unchecked atomic.Int64
}

func (t *inTurn) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	var number int
	fmt.Sscan(message.GetProperty(turnProperty), &number)
	state := turns[number%len(turns)].state
	if state == primitive.UnknowState {
		t.unchecked.Add(1)
	}
	return state
}

func (t *inTurn) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	if _, isKnown := t.checked.LoadOrStore(message.GetProperty(turnProperty), true); !isKnown {
		t.unchecked.Add(-1)
	}
	return primitive.CommitMessageState
}
