package shard

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// privilege is one entry of a role.
type privilege struct {
	Resource bson.D   `bson:"resource"`
	Actions  []string `bson:"actions"`
}

// onDatabase allows actions on all collections of one database; "" is every one.
func onDatabase(db string, actions ...string) privilege {
	return onCollection(db, "", actions...)
}

// onCollection allows actions on one collection.
func onCollection(db, collection string, actions ...string) privilege {
	return privilege{bson.D{{Key: "db", Value: db}, {Key: "collection", Value: collection}}, actions}
}

// onCluster allows actions on the whole set.
func onCluster(actions ...string) privilege {
	return privilege{bson.D{{Key: "cluster", Value: true}}, actions}
}

// scratchCollection is where trials happen; it is empty but for those under way.
const scratchCollection = "scratch"

// account is one of Drover's users with the role that it always has.
type account struct {
	user       string
	role       string
	privileges []privilege
}

// accounts are Drover's users on every shard. Rights on placements are not here:
// they come and go as grants. The admin user makes roles, so it could give itself
// anything; it is the only one, and never serves applications.
func accounts() []account {
	system := chunk.SystemDatabase
	return []account{
		{chunk.AdminUser, "drover_admin_base", []privilege{
			onCluster("replSetGetStatus", "replSetGetConfig", "serverStatus", "hostInfo", "inprog", "killop", "killAnySession",
				"invalidateUserCache", "listDatabases", "viewUser"),
			onDatabase("admin", "createUser", "dropUser", "changePassword", "viewUser", "createRole", "dropRole", "viewRole"),
			onDatabase("", "grantRole", "revokeRole", "viewUser", "viewRole", "find", "listCollections", "listIndexes", "collStats", "dbStats", "dbHash",
				"createCollection", "dropCollection", "dropDatabase", "createIndex", "dropIndex", "collMod"),
			onDatabase(system, "find", "insert", "update", "remove", "changeStream"),
			onCollection("config", "transactions", "find"),
		}},
		{chunk.DataUser, "drover_data_base", []privilege{
			onCollection(system, chunk.FencesCollection, "find"), // the forwarding address
			onCollection("config", "transactions", "find"),       // whether a retried write ran here
		}},
		{chunk.LoaderUser, "drover_load_base", nil},
		{chunk.ApplierUser, "drover_repl_base", []privilege{
			onCollection(system, chunk.CheckpointsCollection, "find"),
			onCluster("replSetGetStatus"),
		}},
		{chunk.CaptureUser, "drover_capture_base", []privilege{
			onDatabase("", "changeStream", "find", "listIndexes"), // which deletes may be TTL's
			onCollection(system, chunk.MarkersCollection, "find", "insert", "update", "remove"),
			onCollection(system, scratchCollection, "find", "insert", "update", "remove"),
			onCollection("local", "oplog.rs", "find"), // its beginning: how long the log lasts
			onCluster("replSetGetStatus", "replSetGetConfig", "serverStatus"),
		}},
		{chunk.ReaderUser, "drover_read_base", []privilege{
			onDatabase("", "find", "listCollections", "listIndexes", "collStats", "dbStats", "dbHash"),
			onCluster("replSetGetStatus", "replSetGetConfig", "listDatabases"),
		}},
		{chunk.RemediatorUser, "drover_remedy_base", []privilege{
			onCluster("replSetGetStatus", "replSetGetConfig", "replSetConfigure", "replSetStateChange", "replSetResizeOplog"),
			onCollection("local", "oplog.rs", "collStats"), // the size of it
		}},
	}
}

// writeActions are the actions that change documents or what a placement is.
var writeActions = []string{
	"insert", "update", "remove", "createCollection", "dropCollection", "dropDatabase", "createIndex", "dropIndex", "collMod",
	"convertToCapped", "renameCollectionSameDB", "bypassDocumentValidation", "restore", "anyAction", "grantRole", "createUser", "changePassword",
}
