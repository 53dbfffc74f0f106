package upstream

import (
	"context"
	"fmt"

	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// saslReply is a server's step of a SASL conversation.
type saslReply struct {
	OK             float64     `bson:"ok"`
	Code           int32       `bson:"code"`
	ErrMsg         string      `bson:"errmsg"`
	ConversationID any         `bson:"conversationId"`
	Payload        bson.Binary `bson:"payload"`
	Done           bool        `bson:"done"`
}

// authenticate logs c in with SCRAM-SHA-256. client keeps the derived keys, so
// that only the first connection pays for them.
func (c *Conn) authenticate(ctx context.Context, client *scram.Client) error {
	conversation := client.NewConversation()
	payload, err := conversation.Step("")
	if err != nil {
		return fmt.Errorf("scram: %w", err)
	}
	reply, err := c.saslStep(ctx, bson.D{
		{Key: "saslStart", Value: 1},
		{Key: "mechanism", Value: "SCRAM-SHA-256"},
		{Key: "payload", Value: bson.Binary{Data: []byte(payload)}},
		{Key: "options", Value: bson.D{{Key: "skipEmptyExchange", Value: true}}},
		{Key: "$db", Value: "admin"},
	})
	if err != nil {
		return err
	}
	for {
		if reply.Done && conversation.Done() {
			break
		}
		payload, err = conversation.Step(string(reply.Payload.Data))
		if err != nil {
			return fmt.Errorf("scram: %w", err)
		}
		if reply.Done {
			continue
		}
		reply, err = c.saslStep(ctx, bson.D{
			{Key: "saslContinue", Value: 1},
			{Key: "conversationId", Value: reply.ConversationID},
			{Key: "payload", Value: bson.Binary{Data: []byte(payload)}},
			{Key: "$db", Value: "admin"},
		})
		if err != nil {
			return err
		}
	}
	if !conversation.Valid() {
		return fmt.Errorf("scram: the server did not prove that it knows the password")
	}
	return nil
}

// saslStep sends one step and gives the server's.
func (c *Conn) saslStep(ctx context.Context, doc bson.D) (saslReply, error) {
	raw, err := c.command(ctx, doc)
	if err != nil {
		return saslReply{}, fmt.Errorf("scram: %w", err)
	}
	var reply saslReply
	if err := bson.Unmarshal(raw, &reply); err != nil {
		return saslReply{}, fmt.Errorf("scram: %w", err)
	}
	if reply.OK != 1 {
		return saslReply{}, fmt.Errorf("scram: refused with code %d: %s", reply.Code, reply.ErrMsg)
	}
	return reply, nil
}
