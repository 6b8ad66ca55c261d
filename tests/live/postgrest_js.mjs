// What an application does with @supabase/postgrest-js, told as one JSON object.
import { PostgrestClient } from '@supabase/postgrest-js'

const [url, key, token] = process.argv.slice(2)
const client = new PostgrestClient(url, { headers: { apikey: key, Authorization: `Bearer ${token}` } })
const told = {}

async function tell(name, query) {
  const { data, error, count, status } = await query
  told[name] = { data, status, ...(count !== null && count !== undefined ? { count } : {}), ...(error ? { code: error.code } : {}) }
}

await tell('select', client.from('books').select('title,authors(name)').lt('price', 10).order('title'))
await tell('filters', client.from('books').select('id').in('id', [1, 2, 3]).not('year', 'eq', 1961).or('id.eq.1,id.eq.3'))
await tell('count', client.from('books').select('*', { count: 'exact', head: true }).lte('id', 3))
await tell('range', client.from('books').select('id', { count: 'exact' }).lte('id', 4).order('id').range(1, 2))
await tell('single', client.from('books').select('title').eq('id', 3).single())
await tell('notSingle', client.from('books').select('title').gt('id', 0).single())
await tell('maybeSingle', client.from('books').select('title').eq('id', -1).maybeSingle())
await tell('csv', client.from('tags').select('id,label').lte('id', 2).order('id').csv())
await tell('insert', client.from('tags').insert([{ id: 100, label: 'js' }]).select())
await tell('upsert', client.from('tags').upsert({ id: 100, label: 'javascript' }).select().single())
await tell('update', client.from('tags').update({ label: 'ecmascript' }).eq('id', 100).select('label'))
await tell('delete', client.from('tags').delete().eq('id', 100).select('id'))
await tell('unfiltered', client.from('tags').delete())
await tell('rpc', client.rpc('add', { a: 1, b: 2 }))
await tell('rpcRows', client.rpc('affordable', { most: 9.95 }, { get: true }).select('title').order('title').limit(1))
await tell('missing', client.from('nothing').select())
console.log(JSON.stringify(told))
