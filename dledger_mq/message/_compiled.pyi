from dledger_mq.message.compiled import EncodeRecords, ReadBatch

read_batch: ReadBatch
encode_records: EncodeRecords
