package main

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// What came in, whichever way.
type tally struct {
	*options
	lock                        sync.Mutex
	deliveries, accepted, later int
	ids                         map[string]int
	bodies                      map[string]bool
	full                        chan struct{}
	replier                     rocketmq.Producer
}

func consume(o *options) (bool, func() error, error) {
	t := &tally{options: o, ids: map[string]int{}, bodies: map[string]bool{}, full: make(chan struct{})}
	began := time.Now()
	start := t.startPush
	if o.pull {
		start = t.startPull
	}
	if o.reply {
		if err := t.startReplier(); err != nil {
			return false, nil, err
		}
	}
	stop, err := start()
	if err != nil {
		return false, nil, err
	}
	emit(row{"event": "started", "client": client, "pid": os.Getpid(), "ms": time.Since(began).Milliseconds()})
	select {
	case <-t.full:
		time.Sleep(seconds(o.linger))
	case <-time.After(seconds(o.timeout)):
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	emit(row{"summary": true, "client": client, "op": "consume", "topic": o.topic, "group": o.group, "asked": o.count,
		"deliveries": t.deliveries, "accepted": t.accepted, "later": t.later, "distinct_ids": len(t.ids),
		"distinct_bodies": len(t.bodies), "elapsed_ms": time.Since(began).Milliseconds()})
	return t.accepted >= o.count, stop, nil
}

func (t *tally) settings() []consumer.Option {
	return []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver(strings.Split(t.namesrv, ";"))),
		consumer.WithGroupName(t.group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
}

func (t *tally) selector() consumer.MessageSelector {
	return consumer.MessageSelector{Type: consumer.TAG, Expression: t.expression}
}

func (t *tally) startPush() (func() error, error) {
	made, err := rocketmq.NewPushConsumer(append(t.settings(), consumer.WithConsumerOrder(t.orderly))...)
	if err != nil {
		return nil, err
	}
	again := consumer.ConsumeRetryLater
	if t.orderly {
		again = consumer.SuspendCurrentQueueAMoment
	}
	listen := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if t.take(messages) {
			return again, nil
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := made.Subscribe(t.topic, t.selector(), listen); err != nil {
		return nil, err
	}
	return made.Shutdown, made.Start()
}

func (t *tally) startPull() (func() error, error) {
	made, err := rocketmq.NewPullConsumer(t.settings()...)
	if err != nil {
		return nil, err
	}
	if err := made.Subscribe(t.topic, t.selector()); err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	go func() { // until the process ends
		for {
			polled, err := made.Poll(background, time.Second)
			if err != nil {
				continue // it has waited for that second
			}
			result := consumer.ConsumeSuccess
			if t.take(polled.GetMsgList()) {
				result = consumer.ConsumeRetryLater
			}
			made.ACK(background, polled, result)
		}
	}()
	return made.Shutdown, nil
}

func (t *tally) startReplier() error {
	made, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver(strings.Split(t.namesrv, ";"))),
		producer.WithGroupName("interop_go_replier"),
	)
	if err != nil {
		return err
	}
	t.replier = made
	return made.Start()
}

// Answer a message; what became of that.
func (t *tally) answer(message *primitive.MessageExt) string {
	body := append([]byte("re:"), message.Body...)
	made, err := consumer.CreateReplyMessage(message, body)
	if err != nil {
		return text(err)
	}
	made.Body = body // which the library of this version takes for properties, and drops
	result, err := t.replier.SendSync(background, made)
	if err != nil {
		return text(err)
	}
	if result.Status != primitive.SendOK {
		return "not taken"
	}
	return "SEND_OK"
}

// Note a delivery; true if it is to come again.
func (t *tally) take(messages []*primitive.MessageExt) bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	later := false
	for _, message := range messages { // one, unless they are polled
		t.deliveries++
		later = t.deliveries <= t.reconsumeFirst
		line := row{"topic": message.Topic, "broker": message.Queue.BrokerName, "queue_id": message.Queue.QueueId,
			"queue_offset": message.QueueOffset, "msg_id": message.MsgId, "tags": message.GetTags(),
			"keys": strings.TrimSpace(message.GetKeys()), "body_len": len(message.Body),
			"body_sha1": digest(message.Body), "reconsume_times": message.ReconsumeTimes,
			"delivery": t.deliveries, "action": "ok"}
		if t.replier != nil {
			line["reply"] = t.answer(message)
		}
		if len(message.Body) <= 200 {
			line["body"] = string(message.Body)
		}
		if later {
			t.later++
			line["action"] = "later"
		} else {
			t.accepted++
			t.ids[message.MsgId]++
			t.bodies[digest(message.Body)] = true
		}
		emit(line)
	}
	select {
	case <-t.full:
	default:
		if t.accepted >= t.count {
			close(t.full)
		}
	}
	return later
}
