package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// gather sends a read to some chunks at once. The answers are good ones; they
// are there to be released even with an error.
func (p *Proxy) gather(ctx context.Context, q *request, entries []*entry, e edit) ([]answer, error) {
	answers := make([]answer, len(entries))
	errs := make([]error, len(entries))
	p.parallel(len(entries), func(i int) {
		answers[i], errs[i] = p.dispatch(ctx, q, &leg{entry: entries[i], access: reads, edit: e})
		if errs[i] == nil && !answers[i].ok {
			errs[i] = answers[i].asError()
		}
	})
	for _, err := range errs {
		if err != nil {
			return answers, err
		}
	}
	return answers, nil
}

// releaseAll releases some answers.
func releaseAll(answers []answer) {
	for i := range answers {
		answers[i].release()
	}
}

// document builds one document.
func document(fn func(dst []byte) []byte) []byte {
	at, dst := bsoncore.AppendDocumentStart(nil)
	dst, _ = bsoncore.AppendDocumentEnd(fn(dst), at)
	return dst
}
