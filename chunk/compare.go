package chunk

import (
	"bytes"
	"cmp"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// CompareValues compares two values as their encodings compare, which are made only
// where it takes more than to look at two values of one type.
func CompareValues(a, b bson.RawValue) (int, error) {
	if a.Type == b.Type {
		switch a.Type { //nolint:exhaustive // the others are encoded
		case bson.TypeString:
			x, xerr := wholeText(a)
			y, yerr := wholeText(b)
			if xerr == nil && yerr == nil {
				return bytes.Compare(x, y), nil
			}
		case bson.TypeObjectID:
			if len(a.Value) == 12 && len(b.Value) == 12 {
				return bytes.Compare(a.Value, b.Value), nil
			}
		case bson.TypeInt32, bson.TypeInt64:
			x, xok := a.AsInt64OK()
			y, yok := b.AsInt64OK()
			if xok && yok {
				return cmp.Compare(x, y), nil
			}
		}
	}
	x, err := EncodeValue(a)
	if err != nil {
		return 0, err
	}
	y, err := EncodeValue(b)
	return cmp.Compare(x, y), err
}

// wholeText gives the text that is all of a value.
func wholeText(v bson.RawValue) ([]byte, error) {
	r := reader{buf: v.Value}
	text, err := r.text()
	if err == nil && len(r.buf) != 0 {
		err = ErrMalformed
	}
	return text, err
}
