"""What an application does with PyMongo; each step's result is one line of JSON.

The same script runs against one server and through a proxy over several chunks:
the lines must be the same.
"""

import sys

import bson.json_util
import pymongo
from bson import Decimal128, Int64
from pymongo import DeleteMany, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.collation import Collation
from pymongo.errors import BulkWriteError, OperationFailure


def order(n):
    return {
        "_id": n,
        "merchant": "m%d" % (n % 7),
        "n": n,
        "price": Decimal128("%d.25" % n),
        "tags": [n % 3, "t"],
        "in": {"x": n % 5},
    }


def bulk(orders):
    result = orders.bulk_write(
        [
            InsertOne(order(200)),
            UpdateOne({"merchant": "m4", "_id": 200}, {"$set": {"n": -1}}),
            UpdateOne({"merchant": "m8", "_id": 300}, {"$set": {"n": 3}}, upsert=True),
            UpdateMany({"in.x": 1}, {"$inc": {"n": Int64(1)}}),
            ReplaceOne({"merchant": "m8", "_id": 300}, {"merchant": "m8", "n": 4}),
            DeleteMany({"in.x": 3}),
        ],
        ordered=False,
    )
    return {k: v for k, v in result.bulk_api_result.items() if k != "writeConcernErrors"}


def transaction(client, orders, fail):
    with client.start_session() as session:
        with session.start_transaction():
            orders.insert_one({"_id": "t%s" % fail, "merchant": "t"}, session=session)
            found = orders.find_one({"merchant": "t", "_id": "t%s" % fail}, session=session)
            if fail:
                session.abort_transaction()
            return found


def steps(client):
    orders, people = client.shop.orders, client.shop.people
    by_id = [("_id", 1)]
    yield "insert", lambda: len(orders.insert_many([order(n) for n in range(60)]).inserted_ids)
    yield "people", lambda: len(people.insert_many([{"_id": n, "name": "p%d" % n} for n in range(40)]).inserted_ids)
    yield "number types", lambda: [people.find_one({"_id": v}) for v in (3, 3.0, Int64(3), Decimal128("3"))]
    yield "duplicates", lambda: orders.insert_many([order(60), order(1), order(61)], ordered=False)
    yield "ordered duplicates", lambda: orders.insert_many([order(62), order(1), order(63)])
    yield "sorted", lambda: list(orders.find({}, sort=[("in.x", -1), ("_id", 1)], batch_size=4, skip=3, limit=40))
    yield "hidden", lambda: list(orders.find({}, {"price": 1, "_id": 0}, sort=[("n", 1)], limit=7))
    yield "in", lambda: list(orders.find({"merchant": {"$in": ["m1", "m6"]}}, sort=by_id))
    yield "or", lambda: list(orders.find({"$or": [{"merchant": "m1"}, {"merchant": "m2"}]}, sort=by_id))
    yield "missing", lambda: list(orders.find({"merchant": None}, sort=by_id))
    yield "count", lambda: orders.count_documents({"n": {"$lt": 20}}, skip=2, limit=15)
    yield "distinct", lambda: orders.distinct("tags")
    yield "bulk", lambda: bulk(orders)
    yield "find and modify", lambda: orders.find_one_and_update(
        {"merchant": "m4", "_id": 4}, {"$inc": {"n": 1}}, return_document=pymongo.ReturnDocument.AFTER
    )
    yield "group", lambda: list(
        orders.aggregate(
            [
                {"$group": {"_id": "$in.x", "sum": {"$sum": "$price"}, "n": {"$avg": "$n"}, "most": {"$max": "$n"}}},
                {"$sort": {"_id": 1}},
            ]
        )
    )
    yield "matched sort", lambda: list(
        orders.aggregate([{"$match": {"n": {"$gt": 5}}}, {"$addFields": {"m": "$n"}}, {"$sort": {"m": -1, "_id": 1}}, {"$limit": 9}])
    )
    yield "collation on one chunk", lambda: list(
        orders.find({"merchant": "m1", "n": {"$lt": 10}}, sort=by_id).collation(Collation("simple"))
    )
    yield "transaction", lambda: transaction(client, orders, False)
    yield "aborted transaction", lambda: transaction(client, orders, True)
    yield "after transactions", lambda: list(orders.find({"merchant": "t"}, sort=by_id))
    yield "bad operator", lambda: orders.find_one({"n": {"$nope": 1}})
    yield "no command", lambda: client.shop.command("noSuchCommand")
    yield "delete", lambda: orders.delete_many({"n": {"$gte": 0}}).deleted_count


def run(step):
    try:
        return {"result": step()}
    except BulkWriteError as e:
        return {"errors": [(w["index"], w["code"]) for w in e.details["writeErrors"]], "n": e.details["nInserted"]}
    except OperationFailure as e:
        return {"code": e.code}


with pymongo.MongoClient(sys.argv[1], serverSelectionTimeoutMS=20000, compressors="zlib") as client:
    for name, step in steps(client):
        print(bson.json_util.dumps({"step": name, **run(step)}))
