package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// crowd is the number of connections of the memory figures.
const crowd = 1000

// bare is a connection that speaks the wire protocol by hand: a driver would
// need more memory than the proxy.
type bare struct {
	nc net.Conn
	r  *wire.Reader
	id int32
}

// send sends a command.
func (c *bare) send(doc bson.D) error {
	body, err := bson.Marshal(doc)
	if err != nil {
		return err
	}
	c.id++
	msg := append(wire.BeginMsg(nil, c.id, 0, 0), body...)
	wire.SetLength(msg, 0)
	_, err = c.nc.Write(msg)
	return err
}

// receive reads a reply and wants it to be good.
func (c *bare) receive() error {
	m, err := c.r.Next()
	if err != nil {
		return err
	}
	var msg wire.Msg
	if err := wire.ParseMsg(m, &msg); err != nil {
		return err
	}
	if ok, found := wire.Find(msg.Body, "ok"); !found || !ok.Truth() {
		return fmt.Errorf("refused: %s", bson.Raw(msg.Body))
	}
	return nil
}

// memory measures the proxy with 1,000 connections that are idle after they have
// been used, and with 1,000 requests that wait for a switch.
func (b *bench) memory(ctx context.Context) error {
	f := newFleet(settings{})
	fenced := f.routes[1]
	key := f.keys(fenced, 1)[0]
	all := make([]*bare, crowd)
	for i := range all {
		nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", b.proxy.address)
		if err != nil {
			return err
		}
		defer func() { _ = nc.Close() }()
		all[i] = &bare{nc: nc, r: wire.NewReader(nc)}
	}
	find := bson.D{{Key: "find", Value: docs}, {Key: "filter", Value: bson.D{{Key: "_id", Value: key}}}, {Key: "$db", Value: pairDB}}
	if err := each(all, 50, func(c *bare) error {
		for _, doc := range []bson.D{{{Key: "hello", Value: 1}, {Key: "$db", Value: "admin"}}, find} {
			if err := c.send(doc); err != nil {
				return err
			}
			if err := c.receive(); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	idle, err := b.proxy.settle(ctx)
	if err != nil {
		return err
	}
	b.results["idle_1000_rss_mb"] = rounded(idle/1e6, 1)

	if _, err := b.proxy.tell("fence " + string(fenced.Chunk.ID)); err != nil {
		return err
	}
	update := bson.D{
		{Key: "update", Value: docs}, {Key: "$db", Value: pairDB}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: key}}},
			{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "pad", Value: make([]byte, 4000)}}}}},
		}}},
	}
	if err := each(all, crowd, func(c *bare) error { return c.send(update) }); err != nil {
		return err
	}
	held, err := b.proxy.settle(ctx)
	if err != nil {
		return err
	}
	b.results["held_1000_rss_mb"] = rounded(held/1e6, 1)
	if _, err := b.proxy.tell("lift " + string(fenced.Chunk.ID)); err != nil {
		return err
	}
	return each(all, crowd, (*bare).receive)
}

// each calls fn for every connection, so many at once.
func each(all []*bare, atOnce int, fn func(*bare) error) error {
	slots := make(chan struct{}, atOnce)
	errs := make(chan error, len(all))
	var wg sync.WaitGroup
	for _, c := range all {
		slots <- struct{}{}
		wg.Go(func() {
			_ = c.nc.SetDeadline(time.Now().Add(time.Minute))
			errs <- fn(c)
			<-slots
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
