package proxy

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// allowedStages are the stages of a pipeline that reads nothing but its own
// documents. What reads another collection would see one chunk of it, and what
// writes would write past the routes.
var allowedStages = map[string]bool{
	"$match": true, "$project": true, "$addFields": true, "$set": true, "$unset": true, "$group": true, "$sort": true,
	"$limit": true, "$skip": true, "$unwind": true, "$count": true, "$sortByCount": true, "$bucket": true,
	"$bucketAuto": true, "$replaceRoot": true, "$replaceWith": true, "$redact": true, "$sample": true,
	"$setWindowFields": true, "$densify": true, "$fill": true, "$geoNear": true, "$facet": true,
}

// knownStages are real stages that are refused, so that the error can say why.
var knownStages = map[string]string{
	"$out": "writes past the routes", "$merge": "writes past the routes",
	"$lookup": "would see one chunk of the other collection", "$graphLookup": "would see one chunk of the other collection",
	"$unionWith":    "would see one chunk of the other collection",
	"$changeStream": "read the captured log instead: it survives a move, a change stream does not",
	"$indexStats":   "shows a shard", "$collStats": "shows a shard", "$planCacheStats": "shows a shard",
	"$currentOp": "shows a shard", "$listSessions": "shows a shard", "$listLocalSessions": "shows a shard",
}

// checkPipeline refuses stages that are not allowed.
func checkPipeline(pipeline bson.Raw) error {
	for w := wire.Walk(pipeline); w.Next(); {
		stage := wire.Walk(w.Document())
		if !stage.Next() {
			return refuse(codeUnknownStage, "a stage of a pipeline must have one field")
		}
		name := string(stage.Key)
		if !allowedStages[name] {
			if why, known := knownStages[name]; known {
				return refuse(codeNotSupported, "%s is not supported: %s", name, why)
			}
			return refuse(codeUnknownStage, "Unrecognized pipeline stage name: '%s'", name)
		}
		if name != "$facet" {
			continue
		}
		for f := wire.Walk(stage.Document()); f.Next(); {
			if err := checkPipeline(f.Document()); err != nil {
				return err
			}
		}
	}
	return nil
}
