/* The compiled stage: what is done for each message with nothing but its bytes and some numbers.
 *
 * Each of its functions is a faster way to what Python code beside its call does already, and leaves to that code whatever
 * is not usual, and whatever is wrong: it decides, and finds the words. So nothing is refused here, and there is one
 * place for each refusal. _sends.c has what leaders do, _bursts.c what for sends that come together, _sockets.c what with
 * sockets that are ready together, _fold.c and _chains.c what every replica does, _pulls.c what pulls do, _filters.c what
 * those by properties do and _conditions.c what they judge by, _received.c what a client does with what they bring,
 * _columns.c what the pipeline does, _compiled.h what they share.
 */
#include "_compiled.h"

PyDoc_STRVAR(see, "See compiled.py.");

static PyMethodDef functions[] = {
    {"read_batch", read_batch, METH_VARARGS, see},
    {"batch_keys", batch_keys, METH_VARARGS, see},
    {"batch_records", batch_records, METH_VARARGS, see},
    {"place_records", place_records, METH_VARARGS, see},
    {"encode_records", encode_records, METH_VARARGS, see},
    {"parse_records", parse_records, METH_VARARGS, see},
    {"fold_usual", fold_usual, METH_VARARGS, see},
    {"fold_entry", fold_entry, METH_VARARGS, see},
    {"chain", chain, METH_VARARGS, see},
    {"chained_keys", chained_keys, METH_VARARGS, see},
    {"asked_values", asked_values, METH_VARARGS, see},
    {"judged_records", judged_records, METH_VARARGS, see},
    {"chosen_runs", chosen_runs, METH_VARARGS, see},
    {"cut_frames", cut_frames, METH_VARARGS, see},
    {"read_sends", read_sends, METH_VARARGS, see},
    {"join_answers", join_answers, METH_VARARGS, see},
    {"received_messages", received_messages, METH_VARARGS, see},
    {"each_answer", each_answer, METH_VARARGS, see},
    {"receive_frames", receive_frames, METH_VARARGS, see},
    {"send_each", send_each, METH_VARARGS, see},
    {"record_columns", record_columns, METH_VARARGS, see},
    {"property_json", property_json, METH_VARARGS, see},
    {"property_values", property_values, METH_VARARGS, see},
    {NULL, NULL, 0, NULL},
};

static int set_up(PyObject *module)
{
    struct names *names = PyModule_GetState(module);
    set_up_crc32c();
    names->key = PyUnicode_InternFromString("key");
    names->topic_field = PyUnicode_InternFromString("topic_field");
    names->next_offset = PyUnicode_InternFromString("next_offset");
    names->tail = PyUnicode_InternFromString("tail");
    names->max_offset = PyUnicode_InternFromString("max_offset");
    names->put_bytes = PyUnicode_InternFromString("put_bytes");
    names->key_seed = PyUnicode_InternFromString("key_seed");
    names->special = PyUnicode_InternFromString("special");
    names->tags = PyUnicode_InternFromString("tags");
    names->before = PyUnicode_InternFromString("before");
    names->serialize_type = PyUnicode_InternFromString("serialize_type");
    names->header = PyUnicode_InternFromString("header");
    names->body = PyUnicode_InternFromString("body");
    bool are_made = names->key && names->topic_field && names->next_offset && names->tail && names->max_offset &&
                    names->put_bytes && names->key_seed && names->special && names->tags && names->before &&
                    names->serialize_type && names->header && names->body;
    return are_made ? 0 : -1;
}

static void free_names(void *module)
{
    struct names *names = PyModule_GetState((PyObject *)module);
    if (names == NULL)
        return;
    Py_CLEAR(names->key);
    Py_CLEAR(names->topic_field);
    Py_CLEAR(names->next_offset);
    Py_CLEAR(names->tail);
    Py_CLEAR(names->max_offset);
    Py_CLEAR(names->put_bytes);
    Py_CLEAR(names->key_seed);
    Py_CLEAR(names->special);
    Py_CLEAR(names->tags);
    Py_CLEAR(names->before);
    Py_CLEAR(names->serialize_type);
    Py_CLEAR(names->header);
    Py_CLEAR(names->body);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)set_up},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "dledger_mq.message._compiled",
    .m_doc = "What is done for each message with nothing but its bytes and some numbers; see compiled.py.",
    .m_size = sizeof(struct names),
    .m_methods = functions,
    .m_slots = slots,
    .m_free = free_names,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&definition);
}
