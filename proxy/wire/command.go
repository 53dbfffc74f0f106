package wire

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Command is the view of a command: what every command may carry, found in one
// walk over its top level. It points into the message's bytes. A field that the
// command lacks has a zero Type.
type Command struct {
	Name  []byte
	First bson.RawValue // the value of the first element: mostly the collection
	Body  []byte

	DB            []byte
	LSID          []byte // the 16 bytes of lsid.id, nil without a session
	TxnNumber     int64
	HasTxnNumber  bool
	Transaction   bool // autocommit: false
	Start         bool // startTransaction: true
	MaxTimeMS     int64
	ReadConcern   bson.RawValue
	WriteConcern  bson.RawValue
	Comment       bson.RawValue
	RecoveryToken bson.RawValue

	Deep     bool   // it is nested deeper than anything may look into it
	Internal []byte // the first field that only members of a cluster may send, nil: none
}

// ParseCommand reads the top level of body into c. An element of the envelope
// that comes twice is refused: two readers could take it in two ways.
func ParseCommand(body []byte, c *Command) error {
	*c = Command{Body: body, Deep: Deep(body)}
	var seen uint32
	first := true
	w := Walk(body)
	for w.Next() {
		if first {
			c.Name, c.First, first = w.Key, w.RawValue(), false
			continue
		}
		bit, err := c.envelope(w.Element)
		if err != nil {
			return err
		}
		if bit != 0 && seen&bit != 0 {
			return fmt.Errorf("%q comes twice: %w", w.Key, errMalformed)
		}
		seen |= bit
	}
	if err := w.Err(); err != nil {
		return fmt.Errorf("command: %w", err)
	}
	if first {
		return fmt.Errorf("empty command: %w", errMalformed)
	}
	return nil
}

// envelope takes e when it belongs to the envelope and gives its bit.
func (c *Command) envelope(e Element) (bit uint32, err error) {
	switch string(e.Key) {
	case "$db":
		if c.DB = e.Text(); c.DB == nil {
			return 0, fmt.Errorf("$db is no string: %w", errMalformed)
		}
		return 1 << 0, nil
	case "lsid":
		id, ok := Find(e.Document(), "id")
		if c.LSID = id.Binary(); !ok || len(c.LSID) != 16 {
			return 0, fmt.Errorf("lsid.id is no UUID: %w", errMalformed)
		}
		return 1 << 1, nil
	case "txnNumber":
		c.TxnNumber, c.HasTxnNumber = e.Number()
		if !c.HasTxnNumber || c.TxnNumber < 0 {
			return 0, fmt.Errorf("txnNumber: %w", errMalformed)
		}
		return 1 << 2, nil
	case "autocommit":
		c.Transaction = !e.Truth()
		return 1 << 3, nil
	case "startTransaction":
		c.Start = e.Truth()
		return 1 << 4, nil
	case "maxTimeMS":
		c.MaxTimeMS, _ = e.Number()
		return 1 << 5, nil
	case "readConcern":
		c.ReadConcern = e.RawValue()
		return 1 << 6, nil
	case "writeConcern":
		c.WriteConcern = e.RawValue()
		return 1 << 7, nil
	case "comment":
		c.Comment = e.RawValue()
		return 1 << 8, nil
	case "recoveryToken":
		c.RecoveryToken = e.RawValue()
		return 1 << 9, nil
	case "shardVersion", "databaseVersion", "fromMongos", "needsMerge", "needsSortedMerge", "fromMigrate", "isClusterQueryWithoutShardKeyCmd",
		"mayBypassWriteBlocking", "coordinator", "startOrContinueTransaction", "impersonatedUsers", "impersonatedRoles",
		"$impersonatedUsers", "$impersonatedRoles", "$audit", "$configServerState", "$tenant", "$_startOrContinueTransaction":
		if c.Internal == nil {
			c.Internal = e.Key
		}
		return 0, nil
	default:
		return 0, nil
	}
}

// Collection gives the first value as a collection's name, nil when it is none.
func (c *Command) Collection() []byte {
	return Element{Type: c.First.Type, Value: c.First.Value}.Text()
}
